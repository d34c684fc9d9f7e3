"""Which airport and which airline runs late, hour by hour?

    file source → function → ┬ SQLite sink
                             └ hourly windows on Spark → topic → official Pulsar client
    what the function cannot parse → dead-letter topic, with its reason

Run it with `make demo`; `FLIGHTS=all make demo` takes the whole year. Everything happens in a temporary
directory on free loopback ports; the plot is saved as out/flights.png. Exit status 1 if any result differs from
a plain computation over the same file.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import tempfile
import time
from pathlib import Path

import pulsar
import report
from flight_data import Expected, Totals, expect, write_flights, write_package
from platform_process import Platform
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

HERE = Path(__file__).parent
PLOT = HERE.parent.parent / "out" / "flights.png"
DEADLINE_S = float(os.environ.get("DEMO_DEADLINE_S", "900"))

NAMESPACE = "persistent://public/default"
DEPARTURES = f"{NAMESPACE}/departures"
JOINED = f"{NAMESPACE}/joined"
DEAD_LETTERS = f"{NAMESPACE}/departures-dead-letters"
HOURLY = f"{NAMESPACE}/hourly-delays"
DAY_MS = 24 * 3600 * 1000


def deploy(platform: Platform, directory: Path, flights: Path) -> None:
    """Create the stages, the last one first, so that nothing is published before somebody listens."""
    database = directory / "flights.sqlite"
    package = directory / "join_flight.zip"
    write_package(package, HERE / "join_flight.py")
    platform.register(
        "function",
        "hourly",
        {
            "className": "hourly_delays.HourlyDelays",
            "runtime": "PYTHON",
            "inputs": [JOINED],
            "output": HOURLY,
            "subscriptionPosition": "Earliest",
            "windowConfig": {
                "windowLengthDurationMs": 3600 * 1000,
                "maxLagMs": DAY_MS,  # In file order scheduled hours run up to 18 hours behind the latest seen.
                "timestampExtractorClassName": "json:time_hour",
            },
            "customRuntimeOptions": json.dumps({"engine": "spark"}),
            "terminateOutput": True,
        },
        HERE / "hourly_delays.py",
    )
    platform.register(
        "sink",
        "store",
        {
            "archive": "builtin://sql",
            "inputs": [JOINED],
            "sourceSubscriptionPosition": "Earliest",
            "configs": {"url": f"sqlite:///{database}", "table": "flights", "key": "flight_id"},
        },
    )
    platform.register(
        "function",
        "join",
        {
            "className": "join_flight.JoinFlight",
            "runtime": "PYTHON",
            "inputs": [DEPARTURES],
            "output": JOINED,
            "subscriptionPosition": "Earliest",
            "processingGuarantees": "EFFECTIVELY_ONCE",
            "maxMessageRetries": 0,
            "deadLetterTopic": DEAD_LETTERS,
            "forwardSourceMessageProperty": True,
            "terminateOutput": True,
        },
        package,
    )
    platform.register(
        "source",
        "departures",
        {
            "archive": "builtin://file",
            "topicName": DEPARTURES,
            "processingGuarantees": "EFFECTIVELY_ONCE",
            "configs": {"path": str(flights), "format": "csv", "key": "origin", "terminate": True},
        },
    )


def follow(console: Console, platform: Platform, rows: int) -> None:
    """Show how far each stage is until the last window has closed."""
    columns = (TextColumn("{task.description:<28}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    deadline = time.monotonic() + DEADLINE_S
    with Progress(*columns, console=console) as progress:
        published = progress.add_task("departures published", total=rows)
        joined = progress.add_task("joined or dead-lettered", total=rows)
        stored = progress.add_task("stored in SQLite", total=rows)
        windows = progress.add_task("in windows on Spark", total=rows)
        while True:
            source = instance(platform, "sources", "departures")
            join = instance(platform, "functions", "join")
            sink = instance(platform, "sinks", "store")
            window = instance(platform, "functions", "hourly")
            progress.update(published, completed=source.get("numWritten", 0))
            progress.update(joined, completed=join.get("numReceived", 0))
            dropped = join.get("numUserExceptions", 0)
            progress.update(stored, completed=sink.get("numWrittenToSink", 0), total=max(1, rows - dropped))
            progress.update(windows, completed=window.get("numReceived", 0), total=max(1, rows - dropped))
            if window.get("ended") and sink.get("numWrittenToSink", 0) >= rows - dropped:
                return
            for name, status in (("source", source), ("function", join), ("sink", sink), ("window", window)):
                if status.get("numRestarts", 0) > 3:
                    raise SystemExit(f"the {name} does not stay up: {status.get('error')}")
            if time.monotonic() > deadline:
                raise SystemExit(
                    f"not done after {DEADLINE_S:.0f} s; the platform's log says:\n{platform.log_tail()}"
                )
            time.sleep(0.5)


def instance(platform: Platform, kind: str, name: str) -> dict[str, object]:
    """The status of the one instance of a stage."""
    status = platform.get(f"/v3/{kind}/public/default/{name}/status")
    instances = status.get("instances") or [{}]
    found: dict[str, object] = instances[0].get("status") or {}
    return found


def read_topic(platform: Platform, topic: str) -> list[pulsar.Message]:
    """All messages of a topic, with the official client."""
    client = pulsar.Client(platform.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        messages = []
        while reader.has_message_available():
            messages.append(reader.read_next(timeout_millis=30_000))
        return messages
    finally:
        client.close()


def read_sqlite(database: Path) -> dict[str, Totals]:
    """What the sink stored, by airline."""
    connection = sqlite3.connect(database)
    try:
        rows = connection.execute(
            "SELECT carrier, COUNT(*), SUM(dep_delay), SUM(dep_delay > 15) FROM flights GROUP BY carrier"
        ).fetchall()
    finally:
        connection.close()
    return {carrier: Totals(flights, minutes, late) for carrier, flights, minutes, late in rows}


def main() -> int:
    """Run the demo; 0 if every result is right."""
    console = Console()
    all_year = os.environ.get("FLIGHTS", "") == "all"
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="magnetar-demo-") as name:
        directory = Path(name)
        flights = directory / "departures.csv"
        rows = write_flights(flights, all_year=all_year)
        expected = expect(flights)
        console.print(f"{rows:,} departures, {expected.unparsable:,} of which never left")
        with Platform(directory) as platform:
            console.print(
                f"platform ready after {platform.ready_after_s:.2f} s: {platform.service_url} {platform.web_url}"
            )
            deploy(platform, directory, flights)
            follow(console, platform, rows)
            hours = [json.loads(message.data()) for message in read_topic(platform, HOURLY)]
            dead = read_topic(platform, DEAD_LETTERS)
        stored = read_sqlite(directory / "flights.sqlite")
        return conclude(console, expected, hours, stored, dead, time.monotonic() - began)


def conclude(
    console: Console,
    expected: Expected,
    hours: list[dict[str, object]],
    stored: dict[str, Totals],
    dead: list[pulsar.Message],
    seconds: float,
) -> int:
    """Show the answer and check it."""
    report.show(console, hours)
    report.plot(PLOT, hours)
    console.print(f"plot: {PLOT}")
    if dead:
        console.print(f"a dead letter's reason: {dead[0].properties().get('exception', '(none)')}")
    wrong = report.differences(expected, hours, stored, len(dead))
    if any(not message.properties().get("exception") for message in dead):
        wrong.append("a dead letter has no reason")
    for difference in wrong[:20]:
        console.print(f"[red]wrong:[/red] {difference}")
    verdict = "all results equal the plain computation" if not wrong else f"{len(wrong)} differences"
    console.print(f"{len(hours):,} hourly windows, {len(dead):,} dead letters, {seconds:.1f} s: {verdict}")
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted: the platform was stopped, its data removed")
