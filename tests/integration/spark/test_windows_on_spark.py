"""A window on a real Spark, deployed over REST and run by the worker: exact, whatever is killed."""

from __future__ import annotations

import json
import time
import urllib.request
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pulsar
import pytest

from magnetar.testing.processes import MagnetarProcess

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(420)]

INPUT = "persistent://public/default/readings"
OUTPUT = "persistent://public/default/sums"
MINUTE = 60_000
BEGIN = 1_700_000_040_000  # A whole minute.
DEADLINE_S = 240.0
FUNCTION = b"""
class Sum:
    def process(self, items, context):
        return {"key": context.key, "start": context.start_ms, "values": [item["value"] for item in items]}
"""
CONFIG: dict[str, Any] = {
    "className": "sums.Sum",
    "runtime": "PYTHON",
    "inputs": [INPUT],
    "output": OUTPUT,
    "subscriptionPosition": "Earliest",
    "windowConfig": {
        "windowLengthDurationMs": MINUTE,
        "maxLagMs": 10_000,
        "watermarkEmitIntervalMs": 200,
        "timestampExtractorClassName": "json:at",
    },
    "customRuntimeOptions": json.dumps({"engine": "spark"}),
    "terminateOutput": True,
}


class Rest:
    """The few calls this test makes."""

    def __init__(self, url: str) -> None:
        self._url = url

    def call(self, method: str, path: str, body: bytes | None = None, kind: str = "application/json") -> Any:
        request = urllib.request.Request(
            f"{self._url}/admin{path}", body, {"Content-Type": kind}, method=method
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            text = response.read()
        return json.loads(text) if text else None

    def create_function(self, name: str, config: dict[str, Any], code: bytes) -> None:
        mark = uuid.uuid4().hex
        head = "Content-Disposition: form-data;"
        config_part = f'--{mark}\r\n{head} name="functionConfig"\r\nContent-Type: application/json\r\n\r\n'
        code_part = f'\r\n--{mark}\r\n{head} name="data"; filename="sums.py"\r\n\r\n'
        body = config_part.encode() + json.dumps(config).encode() + code_part.encode() + code
        body += f"\r\n--{mark}--\r\n".encode()
        path = f"/v3/functions/public/default/{name}"
        self.call("POST", path, body, f"multipart/form-data; boundary={mark}")

    def status(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.call("GET", f"/v3/functions/public/default/{name}/status")["instances"][
            0
        ]["status"]
        return found


def until(condition: Callable[[], bool], what: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.2)


def publish(client: pulsar.Client, first: int, last: int) -> None:
    """One reading a second, for two keys, slightly out of order; the official client batches them."""
    producer = client.create_producer(INPUT, batching_enabled=True, batching_max_publish_delay_ms=5)
    numbers = list(range(first, last))
    for start in range(0, len(numbers), 7):
        for number in reversed(numbers[start : start + 7]):
            reading = json.dumps({"at": BEGIN + number * 1000, "value": number}).encode()
            producer.send_async(reading, lambda *_: None, partition_key="even" if number % 2 == 0 else "odd")
    producer.flush()
    producer.close()


def expected(count: int) -> dict[tuple[str, int], list[int]]:
    windows: dict[tuple[str, int], list[int]] = {}
    for number in range(count):
        start = (BEGIN + number * 1000) // MINUTE * MINUTE
        windows.setdefault(("even" if number % 2 == 0 else "odd", start), []).append(number)
    return windows


def results(client: pulsar.Client) -> list[dict[str, Any]]:
    reader = client.create_reader(OUTPUT, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(json.loads(reader.read_next(timeout_millis=30_000).data()))
    reader.close()
    return found


def check(found: list[dict[str, Any]], count: int) -> None:
    windows = {(item["key"], item["start"]): item["values"] for item in found}
    assert len(windows) == len(found), "a window came twice"
    assert windows == expected(count)


def descendants(pid: int) -> dict[int, str]:
    """The processes below one, by id, with their program's name."""
    parents: dict[int, list[int]] = {}
    names: dict[int, str] = {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            head, _, tail = (directory / "stat").read_text().rpartition(")")
        except OSError:
            continue  # It ended meanwhile.
        names[int(directory.name)] = head.partition("(")[2]
        parents.setdefault(int(tail.split()[1]), []).append(int(directory.name))
    found, left = {}, [pid]
    while left:
        for child in parents.get(left.pop(), ()):
            found[child] = names[child]
            left.append(child)
    return found


def runs(pid: int) -> bool:
    """Whether a process is there, and not just waiting for a parent to notice its end."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_windows_close_with_the_watermark_and_stay_exact_when_the_whole_platform_is_killed(
    tmp_path: Path,
) -> None:
    """Worker and broker die as a window's result arrives; the job then goes on from its checkpoint by itself."""
    platform = MagnetarProcess.standalone(tmp_path)
    with platform:
        rest, client = Rest(platform.web_url), pulsar.Client(platform.service_url)
        rest.create_function("sums", CONFIG, FUNCTION)
        publish(client, 0, 150)
        until(lambda: len(results(client)) >= 2, lambda: rest.status("sums"))
        publish(client, 150, 260)  # Closes two more windows, and leaves the fifth minute open.
        until(lambda: len(results(client)) >= 4, lambda: rest.status("sums"))
        below = descendants(platform.pid)
        assert "java" in below.values(), below
        platform.kill()
        with suppress(pulsar.NotConnected):  # Nobody is left to say goodbye to.
            client.close()
        until(lambda: not any(map(runs, below)), lambda: {p: n for p, n in below.items() if runs(p)})
    with platform:
        rest, client = Rest(platform.web_url), pulsar.Client(platform.service_url)
        publish(client, 260, 400)
        rest.call("POST", f"/v2/{INPUT.replace('://', '/')}/terminate", b"")
        until(lambda: bool(rest.status("sums")["ended"]), lambda: rest.status("sums"))
        check(results(client), 400)
        assert int(rest.status("sums")["numReceived"]) < 400, "it began anew instead of from its checkpoint"
        stats = rest.call("GET", f"/v2/{INPUT.replace('://', '/')}/stats")
        assert stats["subscriptions"]["public/default/sums"]["msgBacklog"] == 0
        client.close()


def test_a_driver_killed_between_sending_and_committing_leaves_the_result_exact(tmp_path: Path) -> None:
    """The driver dies before its second commit, rows sent and receipted: the next one sends them again."""
    token = tmp_path / "died"
    crash = {"MAGNETAR_CRASH_POINT": "spark.sink.before_commit:2", "MAGNETAR_CRASH_ONCE": str(token)}
    with MagnetarProcess.standalone(tmp_path, environment=crash) as platform:
        rest, client = Rest(platform.web_url), pulsar.Client(platform.service_url)
        rest.create_function("sums", CONFIG, FUNCTION)
        publish(client, 0, 200)
        until(token.exists, lambda: rest.status("sums"))
        publish(client, 200, 500)
        rest.call("POST", f"/v2/{INPUT.replace('://', '/')}/terminate", b"")
        until(lambda: bool(rest.status("sums")["ended"]), lambda: rest.status("sums"))
        assert int(rest.status("sums")["numRestarts"]) >= 1
        check(results(client), 500)
        client.close()
