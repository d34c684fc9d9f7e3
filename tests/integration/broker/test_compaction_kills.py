"""A platform is killed in the middle of compactions: the official client reads the right table before and after."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from pathlib import Path

import pulsar
import pytest

from magnetar.testing.processes import MagnetarProcess

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
TOPIC = "persistent://public/default/table"
PATH = "/persistent/public/default/table"
POINTS = ("compaction.writing", "compaction.written", "compaction.switched")
"""The others are tried in tests/unit/broker/compaction."""


def call(platform: MagnetarProcess, method: str, path: str, body: object = None) -> bytes:
    request = urllib.request.Request(
        f"{platform.web_url}/admin/v2{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        answered: bytes = answer.read()
        return answered


def say(url: str, said: dict[str, bytes]) -> None:
    client = pulsar.Client(url, logger=QUIET)
    try:
        producer = client.create_producer(TOPIC, batching_enabled=True, batching_max_publish_delay_ms=5)
        for key, value in said.items():
            producer.send_async(value, lambda result, message_id: None, partition_key=key)
        producer.flush()
    finally:
        client.close()


def table(url: str) -> dict[str, bytes]:
    """What a reader that reads compacted makes of the topic."""
    client = pulsar.Client(url, logger=QUIET)
    try:
        reader = client.create_reader(TOPIC, pulsar.MessageId.earliest, is_read_compacted=True)
        found: dict[str, bytes] = {}
        while reader.has_message_available():
            message = reader.read_next(timeout_millis=10_000)
            assert message.partition_key(), "a message that was taken out was delivered"
            found[message.partition_key()] = message.data()
        return {key: value for key, value in found.items() if value}
    finally:
        client.close()


def test_a_table_survives_deaths_during_its_compaction(tmp_path: Path) -> None:
    platform = MagnetarProcess.standalone(tmp_path)
    expected: dict[str, bytes] = {}

    def life(number: int) -> None:
        said = {f"k{each % 13}": b"%d of %d" % (each, number) for each in range(7 * number, 7 * number + 20)}
        said[f"k{number}"] = b""
        say(platform.service_url, said)
        expected.update(said)
        for key in [key for key, value in expected.items() if not value]:
            del expected[key]

    with platform:
        call(platform, "PUT", PATH)
        call(platform, "POST", f"{PATH}/compactionThreshold", 1 << 40)
        life(0)
        call(platform, "PUT", f"{PATH}/compaction")
    for number, point in enumerate(POINTS, 1):
        platform.environment = {"MAGNETAR_CRASH_POINT": point}
        platform.start()
        life(number)
        assert table(platform.service_url) == expected, point
        with contextlib.suppress(OSError):  # It may die before it has answered; that it dies is waited for.
            call(platform, "PUT", f"{PATH}/compaction")
        platform.wait(30)
        platform.environment = {}
        with platform:
            assert table(platform.service_url) == expected, point
    with platform:
        call(platform, "PUT", f"{PATH}/compaction")
        while json.loads(call(platform, "GET", f"{PATH}/compaction"))["status"] == "RUNNING":
            pass
        assert json.loads(call(platform, "GET", f"{PATH}/compaction"))["status"] == "SUCCESS"
        assert table(platform.service_url) == expected
        named = json.loads(call(platform, "GET", f"{PATH}/internalStats"))
        kept = named["cursors"]["__compaction"]["cursorProperties"]["magnetar.ledgers"]
        assert kept == str(named["compactedLedger"]["ledgerId"])
