"""What an older Magnetar left behind opens today, with everything that was in it.

The archive is from `tests/fixtures/make_standalone_format_1.py`, of when format 1 was the newest. A change of any format
that forgets to read the one before fails here.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from magnetar.cli.main import main
from magnetar.testing.processes import MagnetarProcess

pytestmark = pytest.mark.integration

ARCHIVE = Path(__file__).parents[2] / "fixtures" / "standalone-format-1.tar.gz"
QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
BATCHED = [f"{name}-{serial}" for name in ("none", "lz4", "zlib", "zstd", "snappy") for serial in range(4)]
SINGLE = [f"single-{serial}" for serial in range(4)]
LATE = [f"late-{serial}" for serial in range(3)]


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[MagnetarProcess]:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    with MagnetarProcess.standalone(tmp_path) as platform:
        yield platform


@pytest.fixture
def client(platform: MagnetarProcess) -> Iterator[pulsar.Client]:
    client = pulsar.Client(platform.service_url, logger=QUIET)
    yield client
    client.close()


def read_all(client: pulsar.Client, topic: str) -> list[pulsar.Message]:
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(20_000))
    return found


def left_for(client: pulsar.Client, subscription: str, count: int) -> list[str]:
    consumer = client.subscribe("history", subscription, consumer_type=pulsar.ConsumerType.Shared)
    found = [consumer.receive(timeout_millis=20_000).data().decode() for _ in range(count)]
    with pytest.raises(pulsar.Timeout):
        consumer.receive(timeout_millis=300)
    return found


def test_every_message_is_there(client: pulsar.Client) -> None:
    history = read_all(client, "history")
    assert [message.data().decode() for message in history] == BATCHED + SINGLE + LATE
    for message in history[: len(BATCHED)]:
        name, serial = message.data().decode().split("-")
        assert message.properties() == {"compression": name}
        assert message.partition_key() == f"key-{serial}"
        assert message.event_timestamp() == 1_000_000 + int(serial)
    parts = [
        {message.data() for message in read_all(client, f"acme/prod/parts-partition-{n}")} for n in range(3)
    ]
    assert [len(part) for part in parts] == [2, 2, 2]
    assert set().union(*parts) == {b"part-%d" % n for n in range(6)}


def test_every_subscription_goes_on_where_it_was(client: pulsar.Client) -> None:
    assert left_for(client, "untouched", 27) == BATCHED + SINGLE + LATE
    unacknowledged = [text for text in BATCHED if text.startswith("zstd")] + ["single-3"]
    assert left_for(client, "ragged", 8) == unacknowledged + LATE


def test_what_was_sent_once_is_not_taken_again(client: pulsar.Client) -> None:
    producer = client.create_producer("acme/prod/once", "once")
    assert producer.last_sequence_id() == 30
    producer.send(b"again", sequence_id=30)
    producer.send(b"new", sequence_id=31)
    assert [message.data() for message in read_all(client, "acme/prod/once")] == [
        *(b"once-%d" % n for n in range(4)),
        b"new",
    ]


def test_policies_and_functions_are_there(
    platform: MagnetarProcess, client: pulsar.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(words: str) -> Any:
        assert main([*words.split(), "--admin-url", platform.web_url]) == 0
        return json.loads(capsys.readouterr().out)

    assert answer("tenants get acme")["adminRoles"] == ["ops"]
    policies = answer("namespaces policies acme/prod")
    assert policies["deduplicationEnabled"] is True
    assert policies["retention_policies"]["retentionTimeInMinutes"] == -1
    assert answer("topics get-partitioned-topic-metadata acme/prod/parts")["partitions"] == 3
    function = answer("functions get --name loud")
    assert function["className"] == "loud.process"
    assert function["userConfig"] == {"kept": True}
    shouts = client.subscribe("shouts", "s", initial_position=pulsar.InitialPosition.Earliest)
    client.subscribe("words", "public/default/loud", consumer_type=pulsar.ConsumerType.Shared).close()
    client.create_producer("words").send(b"hello")
    assert shouts.receive(timeout_millis=20_000).data() == b"hello!"


def test_it_opens_again_after_today_has_written_to_it(platform: MagnetarProcess) -> None:
    client = pulsar.Client(platform.service_url, logger=QUIET)
    client.create_producer("history").send(b"today")
    client.close()
    assert platform.stop() == 0
    platform.start()
    client = pulsar.Client(platform.service_url, logger=QUIET)
    texts = [message.data().decode() for message in read_all(client, "history")]
    client.close()
    assert texts == [*BATCHED, *SINGLE, *LATE, "today"]
