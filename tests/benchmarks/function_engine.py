"""What one message costs in the user process: decode, call, encode; beside a bare Python loop of the same run.

    python -m tests.benchmarks.function_engine

No sockets, no broker: an entry's bytes in, a result frame's bytes out, on one thread. Processor time, the best of
several rounds, the kinds taken in turn so that a busy moment hits them all.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from magnetar.functions.process.channel import Channel
from magnetar.functions.process.function_loop import FunctionLoop
from magnetar.functions.process.job import Job
from magnetar.functions.process.members import (
    INPUT_TOPIC_PROPERTY,
    join_members,
    property_field,
    sequence_fields,
    source_fields,
)
from magnetar.functions.process.wire import Entry, EntryFlag, entry_frame, read_entry, result_frame

ROUNDS = 15
MESSAGES = 10_000
PAYLOAD = b"x" * 100
TOPIC = "persistent://public/default/in"


@dataclass(frozen=True)
class Kind:
    """One way to run the same function: it returns what it is given."""

    name: str
    batch: int = 1000
    schema: str = "bytes"
    sequenced: bool = False
    before: bytes = b""
    """Key and properties of each message."""
    befores: list[bytes] = field(default_factory=list)


KEYED = property_field("origin", b"JFK") + b"\x12\x03JFK"
FROM_A_FUNCTION = source_fields(property_field(INPUT_TOPIC_PROPERTY, TOPIC.encode()), 5, 6, -1, 1000)
KINDS = (
    Kind("bytes, batch 1000"),
    Kind("text (IdentitySerDe), batch 1000", schema=""),
    Kind("bytes, effectively once", sequenced=True),
    Kind("bytes, with key and a property to forward", before=KEYED),
    Kind("bytes, input written by another function", befores=FROM_A_FUNCTION),
    Kind("bytes, batch 100", batch=100),
    Kind("bytes, batch 1", batch=1),
)


def process(value: object, context: object) -> object:
    return value


def bare_loop() -> Callable[[], None]:
    """What the same function costs with nothing around it."""
    payloads = [PAYLOAD] * MESSAGES

    def run() -> None:
        results: list[object] = []
        append = results.append
        for payload in payloads:
            append(process(payload, None))

    return run


def engine(kind: Kind, channel: Channel) -> Callable[[], None]:
    """MESSAGES messages through the engine, as entries of the kind's size."""
    job = Job(
        component="function",
        tenant="public",
        namespace="default",
        name="bench",
        instance_id=0,
        num_instances=1,
        version=0,
        package="",
        kind="py",
        class_name="bench",
        inputs=("in",),
        output="out",
        input_codecs={"in": {"schema": kind.schema}},
        output_codec={"schema": kind.schema},
        sequenced=kind.sequenced,
        beat_every_s=3600.0,
    )
    loop = FunctionLoop(job, process, channel)
    loop.add_topic(1, TOPIC, "in")
    befores = kind.befores[: kind.batch] or [kind.before] * kind.batch
    data = join_members([PAYLOAD] * kind.batch, befores, sequence_fields(10**6, kind.batch))
    entry = Entry(1, 1, 1, 123, 45, -1, 10**6, kind.batch, -1, (), EntryFlag.NONE, data)
    body = entry_frame(entry)[5:] + data

    def run() -> None:
        for _ in range(MESSAGES // kind.batch):
            result_frame(loop.run_entry(read_entry(body)))

    return run


def nanoseconds(run: Callable[[], None]) -> float:
    """Processor time of this thread, per message."""
    began = time.thread_time_ns()
    run()
    return (time.thread_time_ns() - began) / MESSAGES


def measure() -> dict[str, float]:
    """Nanoseconds a message, by kind; the bare loop is there too."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = Channel(ours)
        runs = {"bare Python loop": bare_loop(), **{kind.name: engine(kind, channel) for kind in KINDS}}
        best = dict.fromkeys(runs, float("inf"))
        for _ in range(ROUNDS):
            for name, run in runs.items():
                best[name] = min(best[name], nanoseconds(run))
    return best


def main() -> None:
    figures = measure()
    bare = figures["bare Python loop"]
    for name, cost in figures.items():
        print(f"{name:<45} {cost:8.0f} ns/message  {1e9 / cost:12,.0f} /s  {cost / bare:6.1f} x bare loop")


if __name__ == "__main__":
    main()
