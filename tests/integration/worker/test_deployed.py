"""Components on a real platform: deployed over REST, run by real hosts, killed, and looked at afterwards."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pulsar
import pytest

from magnetar.testing.processes import MagnetarProcess

pytestmark = pytest.mark.integration

ROWS = 12_000
SHOUT = """
from pulsar import Function

class Shout(Function):
    def process(self, input, context):
        if "bad" in input:
            raise ValueError(f"{input} is bad")
        return input.upper()
"""


class Platform:
    """A standalone platform and its REST API."""

    def __init__(self, directory: Path) -> None:
        self.process = MagnetarProcess.standalone(directory)
        self.start()

    def start(self) -> None:
        self.process.start()
        self.client = pulsar.Client(self.process.service_url)

    def kill_and_restart(self) -> None:
        self.client.close()
        self.process.kill()
        self.start()

    def close(self) -> None:
        self.client.close()
        self.process.stop()

    def call(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        return httpx.request(method, f"{self.process.web_url}/admin{path}", timeout=60, **arguments)

    def create(self, kind: str, name: str, config: dict[str, Any], package: str | None = None) -> None:
        parts: list[tuple[str, Any]] = [(f"{kind}Config", (None, json.dumps(config), "application/json"))]
        if package is not None:
            parts.append(("data", ("shout.py", package.encode(), "application/octet-stream")))
        answer = self.call("POST", f"/v3/{kind}s/public/default/{name}", files=parts)
        assert answer.status_code == 204, answer.text

    def status(self, kind: str, name: str) -> dict[str, Any]:
        answer = self.call("GET", f"/v3/{kind}s/public/default/{name}/status")
        assert answer.status_code == 200, answer.text
        status: dict[str, Any] = answer.json()["instances"][0]["status"]
        return status

    def until(self, condition: Callable[[], Any], what: str, timeout_s: float = 30) -> Any:
        deadline = time.monotonic() + timeout_s
        while True:
            found = condition()
            if found:
                return found
            assert time.monotonic() < deadline, f"{what} did not come to be:\n{self.process.log_tail()}"
            time.sleep(0.05)

    def busy(self, kind: str, name: str, counter: str) -> dict[str, Any]:
        """Its status once this host has done a part of its work."""

        def status() -> dict[str, Any] | None:
            found = self.status(kind, name)
            return found if found["running"] and found[counter] >= 200 else None

        found: dict[str, Any] = self.until(status, f"{name} at work: {self.status(kind, name)}")
        return found

    def kill(self, kind: str, name: str, times: int) -> None:
        """SIGKILL its host, and wait for the next; a restart does not hide why."""
        os.kill(self.status(kind, name)["pid"], signal.SIGKILL)

        def status() -> dict[str, Any] | None:
            found = self.status(kind, name)
            return found if found["running"] and found["numRestarts"] > times else None

        assert "killed by SIGKILL" in self.until(status, f"{name} started again")["error"]

    def running(self, kind: str, name: str) -> dict[str, Any]:
        def status() -> dict[str, Any] | None:
            found = self.status(kind, name)
            return found if found["running"] else None

        found: dict[str, Any] = self.until(status, f"{name} running: {self.status(kind, name)}")
        return found


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    platform = Platform(tmp_path)
    yield platform
    platform.close()


def test_rows_reach_topic_and_table_once_though_hosts_are_killed(platform: Platform, tmp_path: Path) -> None:
    source = tmp_path / "rows.csv"
    source.write_text("id,text\n" + "".join(f'{n},"row\n{n}"\n' for n in range(ROWS)))
    database = tmp_path / "rows.db"
    platform.create(
        "sink",
        "store",
        {
            "archive": "builtin://sql",
            "inputs": ["rows"],
            "sourceSubscriptionPosition": "Earliest",
            "configs": {"url": f"sqlite:///{database}", "table": "rows", "key": "id"},
        },
    )
    platform.create(
        "source",
        "read",
        {
            "archive": "builtin://file",
            "topicName": "rows",
            "configs": {"path": str(source), "format": "csv", "key": "id", "rate": 1500, "terminate": True},
        },
    )
    for kills in range(3):
        assert not platform.busy("source", "read", "numWritten")["ended"], "the kills are to hit it at work"
        platform.kill("source", "read", kills)
    platform.busy("sink", "store", "numWrittenToSink")
    platform.kill("sink", "store", 0)
    platform.until(lambda: platform.status("source", "read")["ended"], "the end of the source")
    reader = platform.client.create_reader("rows", pulsar.MessageId.earliest)
    stored = []
    while reader.has_message_available():
        stored.append(json.loads(reader.read_next(10_000).data()))
    assert [row["id"] for row in stored] == [str(n) for n in range(ROWS)], "once, in order, and all"
    assert stored[7]["text"] == "row\n7"

    def rows() -> list[Any]:
        with sqlite3.connect(database) as connection:
            return connection.execute("SELECT id FROM rows").fetchall()

    platform.until(lambda: len(rows()) == ROWS, "all rows in the table")


def test_a_function_runs_says_what_it_raised_and_is_deleted_with_its_subscription(platform: Platform) -> None:
    platform.create(
        "function",
        "shout",
        {
            "className": "shout.Shout",
            "inputs": ["in"],
            "output": "out",
            "maxMessageRetries": 0,
            "deadLetterTopic": "dead",
        },
        SHOUT,
    )
    platform.running("function", "shout")
    answer = platform.call(
        "POST", "/v3/functions/public/default/shout/trigger", files={"data": (None, "hello")}
    )
    assert answer.text == "HELLO"
    producer = platform.client.create_producer("in")
    producer.send(b"bad luck")
    status = platform.until(
        lambda: (s := platform.status("function", "shout"))["numUserExceptions"] and s, "an exception"
    )
    assert "bad luck is bad" in status["latestUserExceptions"][0]["exceptionString"]
    topics = platform.call("GET", "/v2/persistent/public/default/in/subscriptions").json()
    assert "public/default/shout" in topics
    assert platform.call("DELETE", "/v3/functions/public/default/shout").status_code == 204
    assert platform.call("GET", "/v2/persistent/public/default/in/subscriptions").json() == []


def test_a_function_comes_back_after_the_platform_was_killed(platform: Platform) -> None:
    platform.create(
        "function", "shout", {"className": "shout.Shout", "inputs": ["in"], "output": "out"}, SHOUT
    )
    first = platform.running("function", "shout")
    platform.kill_and_restart()
    second = platform.running("function", "shout")
    assert second["pid"] != first["pid"]
    platform.until(lambda: gone(first["pid"]), "its host going with the platform", timeout_s=5)
    answer = platform.call(
        "POST", "/v3/functions/public/default/shout/trigger", files={"data": (None, "again")}
    )
    assert answer.text == "AGAIN"


def test_a_module_that_cannot_be_imported_is_failed_with_the_reason(platform: Platform) -> None:
    platform.create(
        "function", "broken", {"className": "shout.Shout", "inputs": ["in"]}, "import nosuchmodule\n" + SHOUT
    )
    platform.until(
        lambda: "nosuchmodule" in json.dumps(platform.status("function", "broken")),
        "the reason in the status",
    )


def test_what_is_published_right_after_create_is_not_missed(platform: Platform) -> None:
    """A new function begins with the latest: from the moment it is there, not from when its process is up."""
    results = platform.client.subscribe("now-out", "test")
    platform.create(
        "function", "now", {"className": "shout.Shout", "inputs": ["now"], "output": "now-out"}, SHOUT
    )
    platform.client.create_producer("now").send(b"at once")
    assert results.receive(20_000).data() == b"AT ONCE"
