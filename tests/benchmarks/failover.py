"""From a broker's SIGKILL to the first acknowledged message on its successor.

    python -m tests.benchmarks.failover [--rounds 3] [--topics 1] [--session 2] [--tick-ms 500]

Starts a ZooKeeper, three bookies and two brokers, each a process. A producer sends one message after another; the
broker that serves its topic is killed. "detected" is when ZooKeeper gives up the dead broker's session: nobody may take
over before. "rest" is all that follows: taking the bundle, recovering the topic's ledger, and the client's way there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from kazoo.client import KazooClient

from magnetar.testing.processes import MagnetarProcess, free_port
from magnetar.testing.zookeeper import ZooKeeperServer

GIVE_UP_S = 60.0
WARM_UP = 50
BETWEEN_SENDS_S = 0.002
STEPS = ("bundle.acquired", "ledger.recovered", "topic.loaded")


@dataclass(slots=True)
class Brokers:
    """The two brokers, and how they are found."""

    processes: list[MagnetarProcess]
    keeper: KazooClient

    @property
    def service_url(self) -> str:
        return "pulsar://" + ",".join(each.service_url.removeprefix("pulsar://") for each in self.processes)

    def owner(self, topic: str) -> int:
        """Which of them serves a topic."""
        path = topic.replace("://", "/")
        with urllib.request.urlopen(
            f"{self.processes[0].web_url}/lookup/v2/topic/{path}", timeout=10
        ) as answer:
            url = json.load(answer)["brokerUrl"]
        return next(number for number, each in enumerate(self.processes) if each.service_url == url)

    def record(self, number: int) -> str:
        """The ephemeral record that goes with a broker's session."""
        return f"/loadbalance/brokers/{self.processes[number].web_url.removeprefix('http://')}"


@contextmanager
def platform(directory: Path, session_s: float, tick_ms: int) -> Iterator[Brokers]:
    """ZooKeeper, three bookies, two brokers; none of them outlives this process's end by SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with ExitStack() as parts:
        zookeeper = ZooKeeperServer(directory, tick_ms=tick_ms)
        zookeeper.start()
        parts.callback(zookeeper.kill)
        store = f"zk:{zookeeper.address}?session_timeout_s={session_s:g}"
        environment = {"MAGNETAR_LOG_JSON": "true"}
        made = MagnetarProcess(
            ["metadata", "init", "--metadata-store", store, "--cluster", "bench"], directory / "init"
        )
        made.launch()
        made.wait(60)

        def role(*arguments: str) -> MagnetarProcess:
            name = "-".join(arguments[:2])
            words = [arguments[0], "--metadata-store", store, "--data", str(directory / name), *arguments[2:]]
            process = MagnetarProcess(words, directory / f"{name}.log", environment)
            parts.callback(lambda: process.kill() if process.alive() else None)
            process.launch()
            return process

        bookies = [role("bookie", str(number), "--port", "0") for number in range(3)]
        for bookie in bookies:
            bookie.wait_until_ready()
        ports = [(str(free_port()), str(free_port())) for _ in range(2)]
        brokers = [
            role(
                *("broker", str(number), "--port", port, "--web-port", web_port, "--no-functions"),
                *("--ensemble", "3", "--write-quorum", "2", "--ack-quorum", "2"),
            )
            for number, (port, web_port) in enumerate(ports)
        ]
        for broker in brokers:
            broker.wait_until_ready()
        keeper = KazooClient(zookeeper.address)
        keeper.start()
        parts.callback(keeper.close)
        parts.callback(keeper.stop)
        yield Brokers(brokers, keeper)


class Stopwatch:
    """When a send that began after the kill was first acknowledged, and the longest gap between two."""

    def __init__(self) -> None:
        self.killed_at: float | None = None
        self.first: float | None = None
        self.acknowledged = 0
        self.warm = threading.Event()
        self.done = threading.Event()
        self.failure: BaseException | None = None

    def sent(self) -> None:
        """A receipt has come."""
        self.acknowledged += 1
        if self.acknowledged == WARM_UP:
            self.warm.set()
        if self.killed_at is not None:
            self.first = time.monotonic()
            self.done.set()


def official(url: str, topic: str, watch: Stopwatch) -> None:
    """Send until the watch is done, with the client most people use."""
    import pulsar

    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(topic, batching_enabled=False, send_timeout_millis=0)
    while not watch.done.is_set():
        producer.send(b"x" * 100)
        watch.sent()
        time.sleep(BETWEEN_SENDS_S)
    client.close()


def ours(url: str, topic: str, watch: Stopwatch) -> None:
    """The same with Magnetar's own client."""

    async def run() -> None:
        from magnetar.client import Client

        client = Client(url)
        producer = await client.create_producer(topic)
        while not watch.done.is_set():
            await producer.send(b"x" * 100)
            watch.sent()
            await asyncio.sleep(BETWEEN_SENDS_S)
        await client.close()

    asyncio.run(run())


CLIENTS: dict[str, Callable[[str, str, Stopwatch], None]] = {"official": official, "ours": ours}


@dataclass(frozen=True, slots=True)
class Measured:
    """One fail-over, in seconds after the kill."""

    detected: float
    total: float
    steps: dict[str, float]


def fail_over(brokers: Brokers, client: str, topic: str, directory: Path) -> Measured:
    """Kill the topic's broker under a producer, and bring it back afterwards."""
    watch = Stopwatch()

    def produce() -> None:
        try:
            CLIENTS[client](brokers.service_url, topic, watch)
        except BaseException as error:
            watch.failure = error
            watch.warm.set()
            watch.done.set()

    sending = threading.Thread(target=produce, name=f"{client} producer")
    sending.start()
    if not watch.warm.wait(GIVE_UP_S) or watch.failure is not None:
        raise SystemExit(f"nothing was acknowledged: {watch.failure!r}")
    number = brokers.owner(topic)
    record = brokers.record(number)
    time.sleep(2.5)  # The survivor has been told which topics have clients.
    successor = directory / f"broker-{1 - number}.log"
    read_before = successor.stat().st_size
    wall = time.time()
    killed_at = time.monotonic()
    brokers.processes[number].kill()
    watch.killed_at = killed_at
    while brokers.keeper.exists(record) is not None:
        if time.monotonic() - killed_at > GIVE_UP_S:
            raise SystemExit("the session did not end")
        time.sleep(0.005)
    detected = time.monotonic() - killed_at
    if not watch.done.wait(GIVE_UP_S) or watch.first is None:
        raise SystemExit(f"no message was acknowledged by the successor: {watch.failure!r}")
    sending.join(GIVE_UP_S)
    steps = logged_steps(successor, read_before, wall, topic)
    brokers.processes[number].start()
    time.sleep(1.0)
    return Measured(detected, watch.first - killed_at, steps)


def logged_steps(log: Path, offset: int, wall: float, topic: str) -> dict[str, float]:
    """When the successor did what, by its own log."""
    steps: dict[str, float] = {}
    with log.open("rb") as file:
        file.seek(offset)
        for line in file:
            try:
                fact = json.loads(line)
            except ValueError:  # What a library wrote.
                continue
            event = fact["event"]
            if event in STEPS and fact.get("topic", topic) == topic:
                steps[event] = fact["time_ms"] / 1000 - wall
    return steps


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--session", type=float, default=2.0, help="seconds until a silent broker's session ends"
    )
    parser.add_argument("--tick-ms", type=int, default=500, help="ZooKeeper's tick")
    parser.add_argument("--client", choices=sorted(CLIENTS), action="append")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="failover-", dir=os.environ.get("TMPDIR")) as name:
        directory = Path(name)
        with platform(directory, options.session, options.tick_ms) as brokers:
            for client in options.client or CLIENTS:
                results: list[Measured] = []
                for number in range(options.rounds):
                    topic = f"persistent://public/default/failover-{client}-{number}"
                    result = fail_over(brokers, client, topic, directory)
                    results.append(result)
                    steps = "".join(f"   {name} {at:.2f}" for name, at in result.steps.items())
                    print(
                        f"{client}: acknowledged again {result.total:.2f} s after the kill: "
                        f"detected {result.detected:.2f}, rest {result.total - result.detected:.2f}{steps}",
                        flush=True,
                    )
                totals = [each.total for each in results]
                rests = [each.total - each.detected for each in results]
                print(
                    f"{client}: median {statistics.median(totals):.2f} s, worst {max(totals):.2f} s; "
                    f"after detection median {statistics.median(rests):.2f} s, worst {max(rests):.2f} s",
                    flush=True,
                )


if __name__ == "__main__":
    main()
