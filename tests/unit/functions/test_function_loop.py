"""The engine: user code called for each message, results encoded, failures told."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from magnetar.functions.errors import FunctionsError, StateUnavailable
from magnetar.functions.process.channel import Channel
from magnetar.functions.process.current_message import Decoded
from magnetar.functions.process.function_loop import BATCH_BYTES_MAX, MESSAGE_BYTES_MAX, FunctionLoop
from magnetar.functions.process.heart import Heart
from magnetar.functions.process.job import Job
from magnetar.functions.process.members import join_members, raw_metadata, split_batch
from magnetar.functions.process.routing import partition_of
from magnetar.functions.process.wire import Entry, EntryFlag, Result, ResultFlag, entry_frame, read_result

KEYED = b"\x12\x01"


@pytest.fixture
def channel() -> Iterator[Channel]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Channel(ours)


@pytest.fixture
def make(channel: Channel) -> Callable[..., FunctionLoop]:
    def build(process: Callable[[Any, Any], Any], **changes: Any) -> FunctionLoop:
        fields: dict[str, Any] = {
            "component": "function",
            "tenant": "public",
            "namespace": "default",
            "name": "f",
            "instance_id": 0,
            "num_instances": 1,
            "version": 1,
            "package": "",
            "kind": "py",
            "class_name": "f",
            "inputs": ("in",),
            "output": "out",
            "beat_every_s": 60.0,
        }
        loop = FunctionLoop(Job(**{**fields, **changes}), process, channel)
        loop.add_topic(1, "persistent://public/default/in", "in")
        return loop

    return build


def entry(
    *payloads: bytes, befores: list[bytes] | None = None, ordinals: tuple[int, ...] = (), generation: int = 0
) -> Entry:
    data = join_members(payloads, befores or [b""] * len(payloads), [b""] * len(payloads))
    return Entry(1, 1, generation, 5, 6, -1, 100, len(payloads), -1, ordinals, EntryFlag.NONE, data)


def values(result: Result) -> list[bytes]:
    return [p for g in result.groups for p in split_batch(g.payload, len(g.ordinals))[0]]


def test_none_is_no_message_and_a_failure_is_told(make: Callable[..., FunctionLoop]) -> None:
    def process(value: Any, context: Any) -> Any:
        if value == "bad":
            raise KeyError(value)
        return None if value == "quiet" else value * 2

    result = make(process).run_entry(entry(b"a", b"quiet", b"bad", b"7"))
    assert values(result) == [b"aa", b"14"]
    assert list(result.groups[0].ordinals) == [0, 3]
    (failure,) = result.failures
    assert (failure.ordinal, failure.error) == (2, "KeyError: 'bad'")
    assert "in process" in failure.traceback
    assert "run_entry" not in failure.traceback


def test_what_cannot_be_encoded_is_a_failure_of_its_message(make: Callable[..., FunctionLoop]) -> None:
    results = iter([object(), b"x" * (MESSAGE_BYTES_MAX + 1), b"fine"])
    result = make(lambda value, context: next(results)).run_entry(entry(b"1", b"2", b"3"))
    assert [failure.ordinal for failure in result.failures] == [0, 1]
    assert "cannot make a message of object" in result.failures[0].error
    assert values(result) == [b"fine"]


def test_sys_exit_is_a_failure_like_any_other(make: Callable[..., FunctionLoop]) -> None:
    def process(value: Any, context: Any) -> Any:
        raise SystemExit(3)

    assert make(process).run_entry(entry(b"1")).failures[0].error == "SystemExit: 3"


def test_only_what_is_asked_for_is_run(make: Callable[..., FunctionLoop]) -> None:
    seen: list[Any] = []
    make(lambda value, context: seen.append(value)).run_entry(entry(b"a", b"b", b"c", ordinals=(0, 2)))
    assert seen == ["a", "c"]


def test_an_ordered_input_stops_and_later_entries_are_stale_until_the_next_generation(
    make: Callable[..., FunctionLoop],
) -> None:
    def process(value: Any, context: Any) -> Any:
        if value == "bad":
            raise OSError
        return value

    loop = make(process, ordered=True)
    first = loop.run_entry(entry(b"a", b"bad", b"c"))
    assert first.ran_through == 2
    assert values(first) == [b"a"]
    assert loop.run_entry(entry(b"d")).flags & ResultFlag.STALE
    assert values(loop.run_entry(entry(b"d", generation=1))) == [b"d"]


def test_final_failures_stand_between_the_results_around_them(make: Callable[..., FunctionLoop]) -> None:
    def process(value: Any, context: Any) -> Any:
        if value == "bad":
            raise OSError
        return value

    loop = make(process, ordered=True, failures_are_final=True)
    result = loop.run_entry(entry(b"a", b"bad", b"c", b"bad", b"bad", b"e"))
    assert [(g.after_failures, list(g.ordinals)) for g in result.groups] == [(0, [0]), (1, [2]), (3, [5])]
    assert [failure.ordinal for failure in result.failures] == [1, 3, 4]


def test_results_go_to_the_partition_of_their_key(make: Callable[..., FunctionLoop]) -> None:
    keys = [b"a", b"b", b"c", b"d", b"e"]
    loop = make(lambda value, context: value, output_partitions=3)
    result = loop.run_entry(entry(*keys, befores=[KEYED + key for key in keys]))
    for group in result.groups:
        payloads, metadata = split_batch(group.payload, len(group.ordinals))
        assert [Decoded(raw_metadata(fields, group.payload)).key for fields in metadata] == [
            payload.decode() for payload in payloads
        ]
        assert {partition_of(payload, 3) for payload in payloads} == {group.route}
    without_key = entry(b"x")
    without_key.route = 2
    assert loop.run_entry(without_key).groups[0].route == 2


def test_large_results_are_cut_into_several_batches(make: Callable[..., FunctionLoop]) -> None:
    big = b"x" * (BATCH_BYTES_MAX // 2 + 1)
    result = make(lambda value, context: big).run_entry(entry(b"1", b"2", b"3"))
    assert [list(group.ordinals) for group in result.groups] == [[0], [1], [2]]


def test_a_malformed_batch_fails_all_its_messages_for_good(make: Callable[..., FunctionLoop]) -> None:
    broken = entry(b"abc", b"def")
    broken.payload = bytes(broken.payload)[:-1]
    result = make(lambda value, context: value).run_entry(broken)
    assert [failure.rejected for failure in result.failures] == [True, True]


@pytest.mark.parametrize(
    ("codec", "payload", "seen"),
    [
        ({}, b"12", 12),
        ({}, b"1.5", 1.5),
        ({}, b"text", "text"),
        ({}, b"\xff\xfe", b"\xff\xfe"),
        ({"schema": "bytes"}, b"12", b"12"),
        ({"schema": "STRING"}, b"12", "12"),
        ({"schema": "json"}, b'{"a": [1]}', {"a": [1]}),
        ({"serde": "serde.PickleSerDe"}, b"\x80\x04K\x07.", 7),
    ],
)
def test_inputs_through_schema_or_serde(
    make: Callable[..., FunctionLoop], codec: dict[str, str], payload: bytes, seen: Any
) -> None:
    got: list[Any] = []
    make(lambda value, context: got.append(value), input_codecs={"in": codec}).run_entry(entry(payload))
    assert got == [seen]
    assert type(got[0]) is type(seen)


@pytest.mark.parametrize(
    ("codec", "value", "payload"),
    [
        ({"schema": "string"}, "ä", "ä".encode()),
        ({"schema": "json"}, {"a": 1}, b'{"a":1}'),
        ({"serde": "serde.PickleSerDe"}, None, None),
        ({}, 1 + 2j, b"(1+2j)"),
    ],
)
def test_outputs_through_schema_or_serde(
    make: Callable[..., FunctionLoop], codec: dict[str, str], value: Any, payload: bytes | None
) -> None:
    result = make(lambda _, context: value, output_codec=codec).run_entry(entry(b"x"))
    assert values(result) == ([] if payload is None else [payload])


def test_an_unknown_schema_is_refused_when_the_process_starts(make: Callable[..., FunctionLoop]) -> None:
    with pytest.raises(FunctionsError, match="schema 'avro' is not supported"):
        make(lambda value, context: value, output_codec={"schema": "avro"})


def test_the_context_speaks_of_the_current_message(make: Callable[..., FunctionLoop]) -> None:
    told: list[Any] = []

    def process(value: Any, context: Any) -> None:
        told.append((str(context.get_message_id()), context.get_message_key(), context.get_partition_key()))

    loop = make(process)
    loop.run_entry(entry(b"x", b"y", befores=[KEYED + b"k", b""]))
    loop.run_entry(entry(b"z"))
    assert told == [("(5,6,-1,0)", "k", "k"), ("(5,6,-1,1)", "", ""), ("(5,6,-1,-1)", "", "")]


def test_state_is_refused_and_not_dropped(make: Callable[..., FunctionLoop]) -> None:
    def process(value: Any, context: Any) -> None:
        context.incr_counter("n", 1)

    (failure,) = make(process).run_entry(entry(b"x")).failures
    assert StateUnavailable.__name__ in failure.error


class Died(BaseException):
    """Stands for the end of the process: nothing after it runs."""


def test_results_before_an_entry_that_is_alone_are_sent_before_it_runs(
    make: Callable[..., FunctionLoop],
) -> None:
    """Should it end the process, the host must not suspect those that were done."""
    ours, theirs = socket.socketpair()
    with ours, theirs:

        def process(value: str, context: Any) -> str:
            if value == "die":
                raise Died
            return value

        loop = make(process)
        loop._channel = Channel(ours)
        deadly = entry(b"die")
        deadly.flags = EntryFlag.ALONE
        for one in (entry(b"a"), deadly):
            theirs.sendall(entry_frame(one) + bytes(one.payload))
        with pytest.raises(Died):
            loop.run()
        theirs.setblocking(False)
        frame = theirs.recv(1 << 16)
        assert read_result(memoryview(frame)[5:]).groups


def test_what_is_queued_goes_with_the_next_beat() -> None:
    """A slow entry holds up no result of those before it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = Channel(ours)
        channel.queue(b"result")
        Heart(channel, 0.01).begin(7, [])
        theirs.settimeout(10)
        assert theirs.recv(6) == b"result"


@pytest.mark.parametrize("topic", ["in", "persistent://public/default/in"])
def test_a_message_is_acknowledged_by_its_topics_short_and_full_name(
    make: Callable[..., FunctionLoop], topic: str
) -> None:
    """The full name is what `get_current_message_topic_name` gives."""

    def process(value: str, context: Any) -> None:
        context.ack(context.get_message_id(), topic)

    assert make(process, guarantee="MANUAL").run_entry(entry(b"a")).failures == []


def test_an_acknowledgement_for_a_foreign_topic_is_refused(make: Callable[..., FunctionLoop]) -> None:
    def process(value: str, context: Any) -> None:
        context.ack(context.get_message_id(), "persistent://public/default/other")

    (failure,) = make(process, guarantee="MANUAL").run_entry(entry(b"a")).failures
    assert "no input of this function" in failure.error
