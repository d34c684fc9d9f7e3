"""The smaller parts of a host: watchdog, statistics, spec, frames, entries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from magnetar.client.messages import MessageBatch
from magnetar.functions.process.current_message import Decoded
from magnetar.functions.process.members import raw_metadata, split_batch
from magnetar.functions.process.wire import ToHost, beat_frame, json_frame
from magnetar.instance.delivery import Position
from magnetar.instance.entries import arrival_of, batch_payload
from magnetar.instance.errors import SpecUnusable
from magnetar.instance.output_topic import index_of, topic_of
from magnetar.instance.process_protocol import ProcessProtocol
from magnetar.instance.spec import Spec
from magnetar.instance.statistics import LATEST_KEPT, Statistics
from magnetar.instance.watchdog import Watchdog
from magnetar.protocol.ids import MessageId
from magnetar.protocol.pulsar_pb2 import MessageMetadata


def test_a_process_that_moves_does_not_hang_however_slow() -> None:
    watchdog = Watchdog(10.0)
    assert watchdog.next_look(0.0) is None
    watchdog.began(1, 0.0)
    for second in range(1, 100):
        watchdog.progressed(1, second, float(second))
        assert watchdog.hung_for(float(second) + 9.0) is None
    assert watchdog.hung_for(99.0 + 11.0) == 11.0


def test_the_same_progress_again_is_none() -> None:
    watchdog = Watchdog(10.0)
    watchdog.began(1, 0.0)
    for second in range(1, 12):
        watchdog.progressed(1, 0, float(second))
    assert watchdog.hung_for(11.0) == 11.0
    watchdog.idle()
    assert watchdog.hung_for(1000.0) is None
    assert Watchdog(0.0).next_look(0.0) is None


def test_statistics_keep_the_latest_and_count_all() -> None:
    statistics = Statistics()
    for number in range(25):
        statistics.user_failed(f"error {number}", number)
    assert statistics.user.total == 25
    assert [incident.text for incident in statistics.user.latest][-1] == "error 24"
    assert len(statistics.user.latest) == LATEST_KEPT
    statistics.received(10)
    statistics.ran(10, 2, 4_000_000, 5)
    statistics.reset_minute()
    statistics.received(3)
    assert (statistics.counts.received, statistics.counts.processed) == (13, 8)
    assert statistics.last_minute().received == 3
    assert statistics.counts.average_latency_ms == pytest.approx(0.4)
    statistics.measured({"m": [3.0, 2]})
    statistics.measured({"m": [1.0, 1]})
    assert statistics.user_metrics == {"m": [4.0, 3.0]}


SPEC: dict[str, Any] = {
    "version": 1,
    "service_url": "pulsar://h:1",
    "web_url": "http://h:2",
    "component": "function",
    "config": {"name": "f", "className": "f.F", "inputs": ["in"]},
    "package": {"kind": "py", "path": "/x.py"},
    "instances": [0, 1],
    "epoch": 3,
    "log_dir": "/log",
    "work_dir": "/work",
}


def test_a_spec_is_read(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(SPEC))
    spec = Spec.read(path)
    assert (spec.instances, spec.epoch, spec.config.fqfn, spec.package_kind) == (
        (0, 1),
        3,
        "public/default/f",
        "py",
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version": 2}, "reads version 1"),
        ({"component": "thing"}, "component 'thing'"),
        ({"config": {"name": "f"}}, "config: className"),
        ({"package": {"kind": "jar"}}, "package kind 'jar'"),
        ({"instances": None}, "lacks or misstates"),
        ({"epoch": "x"}, "lacks or misstates"),
    ],
)
def test_a_spec_that_cannot_be_run_says_why(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(SpecUnusable, match=reason):
        Spec.parse({**SPEC, **changes})
    with pytest.raises(SpecUnusable):
        Spec.read(tmp_path / "gone.json")


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_frames_cut_anywhere_arrive_whole(size: int) -> None:
    frames: list[tuple[int, bytes]] = []
    protocol = ProcessProtocol(lambda kind, body: frames.append((kind, bytes(body))), lambda: None)
    data = json_frame(ToHost.READY, {}) + beat_frame(1, 2) + json_frame(ToHost.ENDED, {"a": "b" * 50})
    for start in range(0, len(data), size):
        protocol.data_received(data[start : start + size])
    assert [kind for kind, _ in frames] == [ToHost.READY, ToHost.BEAT, ToHost.ENDED]
    assert json.loads(frames[2][1]) == {"a": "b" * 50}


def test_a_plain_message_becomes_a_batch_of_one() -> None:
    about = MessageMetadata(producer_name="p", sequence_id=9, publish_time=1, partition_key="k", event_time=7)
    about.properties.add(key="a", value="b")
    batch = MessageBatch("persistent://a/b/c", MessageId(1, 2), about, b"payload", index=41)
    data = batch_payload(batch)
    payloads, metadata = split_batch(data, 1)
    decoded = Decoded(raw_metadata(metadata[0], data))
    assert payloads == [b"payload"]
    assert (decoded.key, decoded.properties, decoded.event_time, decoded.sequence_id) == (
        "k",
        {"a": "b"},
        7,
        9,
    )
    arrival = arrival_of(batch)
    assert (arrival.position, arrival.count, arrival.first_index) == (Position(1, 2), 1, 41)


def test_a_batch_knows_its_first_index_and_what_of_it_is_acknowledged() -> None:
    about = MessageMetadata(producer_name="p", sequence_id=9, publish_time=1, num_messages_in_batch=4)
    batch = MessageBatch("persistent://a/b/c", MessageId(1, 2), about, b"", index=41, ack_set=[0b1010])
    arrival = arrival_of(batch)
    assert arrival.first_index == 38
    assert arrival.acknowledged == {0, 2}


def test_sequence_ids_and_partitions() -> None:
    assert [index_of(sequence) for sequence in (-1, 0, 256, (7 << 8) + 255)] == [-1, 0, 1, 7]
    assert topic_of("t", -1) == "persistent://public/default/t"
    assert topic_of("t", 3) == "persistent://public/default/t-partition-3"
