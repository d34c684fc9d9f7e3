"""The sink's engine: entries at hand are written together, and apart where that fails."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from magnetar.functions.process.channel import Channel
from magnetar.functions.process.job import Job
from magnetar.functions.process.members import join_members
from magnetar.functions.process.sink_loop import GROUP_BYTES_MAX, GROUP_RECORDS_MAX, SinkLoop
from magnetar.functions.process.wire import (
    FRAME_HEADER,
    Entry,
    EntryFlag,
    Result,
    ResultFlag,
    ToHost,
    ToProcess,
    entry_frame,
    json_frame,
    read_result,
)


class Shelf:
    """A sink that remembers every write, refuses b"bad" as a whole and rejects b"no" by itself."""

    def __init__(self) -> None:
        self.writes: list[list[bytes]] = []
        self.context: Any = None

    def write(self, records: list[Any]) -> None:
        values = [record.value for record in records]
        self.writes.append(values)
        if b"bad" in values:
            raise ValueError("bad record")
        for record in records:
            if record.value == b"no":
                self.context.reject(record, ValueError("not wanted"))


class Bench:
    """A loop with a shelf, and the host's end of its channel."""

    def __init__(self, ours: socket.socket, theirs: socket.socket, **changes: Any) -> None:
        fields: dict[str, Any] = {
            "component": "sink",
            "tenant": "public",
            "namespace": "default",
            "name": "shelf",
            "instance_id": 0,
            "num_instances": 1,
            "version": 1,
            "package": "",
            "kind": "builtin",
            "class_name": "shelf",
            "beat_every_s": 60.0,
        }
        self.host = theirs
        self.sink = Shelf()
        self.loop = SinkLoop(Job(**{**fields, **changes}), self.sink, Channel(ours))
        self.sink.context = self.loop._context

    def feed(self, *entries: Entry) -> list[Result]:
        """Have everything waiting at once, and read what is answered."""
        frames = [json_frame(ToProcess.TOPIC, {"number": 1, "name": "persistent://public/default/in"})]
        frames += [entry_frame(entry) + bytes(entry.payload) for entry in entries]
        frames.append(json_frame(ToProcess.CLOSE, {}))
        self.host.sendall(b"".join(frames))
        self.loop.run()
        self.host.setblocking(False)
        data = bytearray()
        try:
            while chunk := self.host.recv(1 << 20):
                data += chunk
        except BlockingIOError:
            pass  # All that was answered is here.
        results = []
        view = memoryview(bytes(data))
        while view:
            length, kind = FRAME_HEADER.unpack_from(view)
            if kind == ToHost.RESULT:
                results.append(read_result(view[FRAME_HEADER.size : FRAME_HEADER.size - 1 + length]))
            view = view[FRAME_HEADER.size - 1 + length :]
        return results


@pytest.fixture
def bench() -> Iterator[Callable[..., Bench]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        yield lambda **changes: Bench(ours, theirs, **changes)


def entry(serial: int, *payloads: bytes, flags: int = EntryFlag.NONE) -> Entry:
    data = join_members(payloads, [b""] * len(payloads), [b""] * len(payloads))
    return Entry(serial, 1, 0, 5, serial, -1, 100, len(payloads), -1, (), flags, data)


def test_entries_at_hand_are_written_together_and_answered_one_by_one(bench: Callable[..., Bench]) -> None:
    b = bench()
    results = b.feed(entry(1, b"a"), entry(2, b"b", b"c"), entry(3, b"d"))
    assert b.sink.writes == [[b"a", b"b", b"c", b"d"]]
    assert [(r.serial, r.ran_through, r.failures) for r in results] == [(1, 1, []), (2, 2, []), (3, 1, [])]


def test_a_rejected_record_is_its_own_entrys(bench: Callable[..., Bench]) -> None:
    b = bench()
    results = b.feed(entry(1, b"a"), entry(2, b"b", b"no"), entry(3, b"d"))
    assert b.sink.writes == [[b"a", b"b", b"no", b"d"]]
    assert [[(f.ordinal, f.rejected) for f in r.failures] for r in results] == [[], [(1, True)], []]


def test_a_write_that_fails_is_done_over_entry_by_entry(bench: Callable[..., Bench]) -> None:
    b = bench()
    results = b.feed(entry(1, b"a"), entry(2, b"bad", b"b"), entry(3, b"c"))
    assert b.sink.writes == [[b"a", b"bad", b"b", b"c"], [b"a"], [b"bad", b"b"], [b"c"]]
    assert [[f.ordinal for f in r.failures] for r in results] == [[], [0, 1], []]


def test_an_ordered_sink_stops_at_the_entry_that_fails(bench: Callable[..., Bench]) -> None:
    b = bench(ordered=True)
    results = b.feed(entry(1, b"a"), entry(2, b"bad"), entry(3, b"c"))
    assert b.sink.writes == [[b"a", b"bad", b"c"], [b"a"], [b"bad"]]
    assert [r.flags for r in results] == [ResultFlag.NONE, ResultFlag.NONE, ResultFlag.STALE]


def test_what_is_to_be_alone_is_written_alone(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.feed(entry(1, b"a"), entry(2, b"b", flags=EntryFlag.ALONE), entry(3, b"c"), entry(4, b"d"))
    assert b.sink.writes == [[b"a"], [b"b"], [b"c", b"d"]]


def test_at_most_once_never_writes_a_record_again(bench: Callable[..., Bench]) -> None:
    b = bench(guarantee="ATMOST_ONCE")
    b.feed(entry(1, b"a"), entry(2, b"bad"), entry(3, b"c"))
    assert b.sink.writes == [[b"a"], [b"bad"], [b"c"]]


def test_a_batch_is_bounded_by_records_and_bytes(bench: Callable[..., Bench]) -> None:
    b = bench()
    half = [b"x"] * (GROUP_RECORDS_MAX // 2)
    large = b"y" * GROUP_BYTES_MAX
    b.feed(entry(1, *half), entry(2, *half), entry(3, b"c"), entry(4, large), entry(5, b"d", b"e" * 200))
    assert [len(write) for write in b.sink.writes] == [GROUP_RECORDS_MAX, 1, 1, 2]
    assert sum(map(len, b.sink.writes[2])) == len(large)


def test_an_entry_that_cannot_be_read_fails_by_itself(bench: Callable[..., Bench]) -> None:
    b = bench()
    broken = entry(2, b"b")
    broken.payload = b"\x00\x00"
    results = b.feed(entry(1, b"a"), broken, entry(3, b"c"))
    assert b.sink.writes == [[b"a"], [b"c"]]
    assert [[f.rejected for f in r.failures] for r in results] == [[], [True], []]
