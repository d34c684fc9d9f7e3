"""Runs a function: entries in, user code called for each message in order, batches of results out."""

from __future__ import annotations

import json
import time
import traceback
from bisect import bisect
from collections.abc import Iterable, Sequence
from typing import cast

from magnetar.functions.errors import EntryMalformed, SerDeFailed
from magnetar.functions.process.channel import Channel
from magnetar.functions.process.codecs import Decode, Encode, input_decoder, output_encoder
from magnetar.functions.process.current_message import CurrentMessage
from magnetar.functions.process.heart import Heart
from magnetar.functions.process.job import Job
from magnetar.functions.process.loading import Process
from magnetar.functions.process.log_capture import TopicHandler
from magnetar.functions.process.members import (
    INPUT_TOPIC_PROPERTY,
    Metadata,
    forwarded_fields,
    join_members,
    key_of,
    property_field,
    sequence_fields,
    source_fields,
    split_batch,
)
from magnetar.functions.process.metrics import UserMetrics
from magnetar.functions.process.routing import partition_of
from magnetar.functions.process.user_context import FunctionContext
from magnetar.functions.process.wire import (
    Entry,
    EntryFlag,
    Failure,
    OutputGroup,
    Result,
    ResultFlag,
    ToProcess,
    read_entry,
    result_frame,
)

MESSAGE_BYTES_MAX = 5 * 1024 * 1024 - 64 * 1024
"""Pulsar's limit of 5 MiB for a message, less room for its metadata."""
BATCH_BYTES_MAX = 1024 * 1024
TRACEBACK_CHARS_MAX = 8 * 1024
PROMPT_NS = 200_000
"""A result that took longer is sent at once; quicker ones go together."""
_OWN_FRAMES = __name__.rpartition(".")[0]


class FunctionLoop:
    """The engine. `run_entry` is what `run` does for each entry, and needs no channel's other end."""

    def __init__(
        self, job: Job, process: Process, channel: Channel, topic_log: TopicHandler | None = None
    ) -> None:
        self._job = job
        self._process = process
        self._channel = channel
        self._topic_log = topic_log
        self._metrics = UserMetrics()
        self._message = CurrentMessage()
        self._context = FunctionContext(job, channel, self._message, self._metrics)
        self._encode: Encode = output_encoder(job.output_codec)
        self._decoders: dict[int, Decode] = {}
        self._topics: dict[int, str] = {}
        self._topic_fields: dict[int, bytes] = {}
        self._stopped: dict[int, int] = {}
        """Input → the generation that a failure put an end to."""
        self._heart = Heart(channel, job.beat_every_s)

    def run(self) -> None:
        """Work until told to close. Raises HostGone."""
        channel = self._channel
        while True:
            kind, body = channel.receive()
            if kind == ToProcess.ENTRY:
                entry = read_entry(body)
                alone = entry.flags & EntryFlag.ALONE
                if alone:
                    channel.flush()  # Should this one end the process, then none before it is suspected.
                result = self.run_entry(entry)
                channel.queue(result_frame(result))
                if alone or result.elapsed_ns > PROMPT_NS:
                    channel.flush()  # It may be long until the next one is done.
                self._metrics.report(channel, at_once=not channel.waiting())
                if self._topic_log is not None and not channel.waiting():
                    self._topic_log.flush()
            elif kind == ToProcess.TOPIC:
                self.add_topic(**json.loads(body))
            elif kind == ToProcess.ANSWER:
                self._context.published(json.loads(body))
            elif kind == ToProcess.CLOSE:
                self._metrics.report(channel, at_once=True)
                if self._topic_log is not None:
                    self._topic_log.flush()
                return

    def add_topic(self, number: int, name: str, configured: str) -> None:
        """`name` is what entries call `number` from now on; `configured` is the input it came from."""
        self._topics[number] = name
        self._context.add_topic(name)
        self._topic_fields[number] = property_field(INPUT_TOPIC_PROPERTY, name.encode())
        self._decoders[number] = input_decoder(self._job.input_codecs.get(configured, {}))

    def run_entry(self, entry: Entry) -> Result:
        """Call user code for the messages of one entry."""
        stopped = self._stopped.get(entry.topic)
        if stopped is not None and entry.generation <= stopped:
            return Result(entry.serial, entry.generation, ResultFlag.STALE, 0, 0, [], [])
        ordinals: Sequence[int] = entry.ordinals or range(entry.count)
        began = time.perf_counter_ns()
        try:
            payloads, metadata = split_batch(bytes(entry.payload), entry.count)
        except EntryMalformed as error:
            failures = [Failure(ordinal, str(error), rejected=True) for ordinal in ordinals]
            return Result(entry.serial, entry.generation, ResultFlag.NONE, entry.count, 0, [], failures)
        self._message.begin(entry, self._topics[entry.topic], metadata)
        results: list[bytes | None] = []
        failures = []
        self._heart.begin(entry.serial, results)
        self._call(ordinals, payloads, self._decoders[entry.topic], results, failures)
        self._heart.end()
        elapsed = time.perf_counter_ns() - began
        ran_through = entry.count
        if failures and self._stops:
            self._stopped[entry.topic] = entry.generation
            ran_through = failures[-1].ordinal + 1
        groups = self._groups(entry, ordinals, metadata, results, failures)
        return Result(entry.serial, entry.generation, ResultFlag.NONE, ran_through, elapsed, groups, failures)

    @property
    def _stops(self) -> bool:
        return self._job.ordered and not self._job.failures_are_final

    def _call(
        self,
        ordinals: Sequence[int],
        payloads: list[bytes],
        decode: Decode,
        results: list[bytes | None],
        failures: list[Failure],
    ) -> None:
        """The loop that runs once for every message: one result for each, None for none."""
        process, encode, context, message, append = (
            self._process,
            self._encode,
            self._context,
            self._message,
            results.append,
        )
        chosen: Iterable[bytes] = payloads
        if len(ordinals) < len(payloads):
            chosen = [payloads[ordinal] for ordinal in ordinals]
        inputs = zip(ordinals, chosen if decode is bytes else map(decode, chosen), strict=False)
        while True:
            try:
                for message.ordinal, value in inputs:
                    result = process(value, context)
                    if result is not None:
                        result = encode(result)
                        if len(result) > MESSAGE_BYTES_MAX:
                            raise SerDeFailed(
                                f"a result of {len(result)} bytes; a message has {MESSAGE_BYTES_MAX} at most"
                            )
                    append(result)
                return
            except (Exception, SystemExit) as error:  # sys.exit() in a function is a failure of its message.
                failures.append(describe(ordinals[len(results)], error))
                append(None)
                if self._stops:
                    return

    def _groups(
        self,
        entry: Entry,
        ordinals: Sequence[int],
        metadata: list[Metadata],
        results: list[bytes | None],
        failures: list[Failure],
    ) -> list[OutputGroup]:
        if not self._job.output:
            return []
        if None in results:
            chosen: Sequence[int] = [
                o for o, result in zip(ordinals, results, strict=False) if result is not None
            ]
            payloads = [result for result in results if result is not None]
        else:
            chosen, payloads = ordinals, cast("list[bytes]", results)
        if not chosen:
            return []
        befores, afters = self._heads(entry, chosen, metadata)
        if not self._job.output_partitions and not failures and sum(map(len, payloads)) <= BATCH_BYTES_MAX:
            return [OutputGroup(entry.route, chosen, join_members(payloads, befores, afters))]
        slots = self._slots(entry, chosen, metadata, payloads, [failure.ordinal for failure in failures])
        return [
            OutputGroup(
                route,
                [chosen[p] for p in positions],
                join_members(
                    [payloads[p] for p in positions],
                    [befores[p] for p in positions],
                    [afters[p] for p in positions],
                ),
                after_failures,
            )
            for after_failures, route, positions in slots
        ]

    def _heads(
        self, entry: Entry, chosen: Sequence[int], metadata: list[Metadata]
    ) -> tuple[list[bytes], list[bytes]]:
        """The metadata of each result: where it came from, what is forwarded, its sequence id."""
        topic = self._topic_fields[entry.topic]
        befores = source_fields(topic, entry.ledger_id, entry.entry_id, entry.partition, entry.count)
        afters = (
            sequence_fields(entry.first_index, entry.count) if self._job.sequenced else [b""] * entry.count
        )
        if len(chosen) < entry.count:
            befores = [befores[ordinal] for ordinal in chosen]
            afters = [afters[ordinal] for ordinal in chosen]
        if self._job.forward_properties:
            for position, ordinal in enumerate(chosen):
                fields = metadata[ordinal]
                if isinstance(fields, bytes):
                    before, after = forwarded_fields(fields)
                    befores[position] += before
                    if after:
                        afters[position] = after + afters[position]
        return befores, afters

    def _slots(
        self,
        entry: Entry,
        chosen: Sequence[int],
        metadata: list[Metadata],
        payloads: list[bytes],
        failed: list[int],
    ) -> list[tuple[int, int, list[int]]]:
        """Results apart by partition, by size, and where order counts by the failures between them.

        Each slot: how many failures come before it, its partition, which of the results belong to it.
        """
        partitions = self._job.output_partitions
        unfinished: dict[tuple[int, int], list[int]] = {}
        sizes: dict[tuple[int, int], int] = {}
        slots: list[tuple[int, int, list[int]]] = []
        for position, ordinal in enumerate(chosen):
            route = entry.route
            if partitions and self._job.forward_properties:
                key = key_of(metadata[ordinal])
                route = entry.route if key is None else partition_of(key, partitions)
            slot = (bisect(failed, ordinal) if self._job.ordered else 0, route)
            size = len(payloads[position])
            if slot in unfinished and sizes[slot] + size > BATCH_BYTES_MAX:
                slots.append((*slot, unfinished.pop(slot)))
                sizes[slot] = 0
            unfinished.setdefault(slot, []).append(position)
            sizes[slot] = sizes.get(slot, 0) + size
        slots += [(*slot, positions) for slot, positions in unfinished.items()]
        return sorted(slots, key=lambda slot: (slot[0], slot[2][0]))


def describe(ordinal: int, error: BaseException, *, rejected: bool = False) -> Failure:
    """A failure as it is shown and sent: the exception in a line, and the end of its traceback."""
    summary = "".join(traceback.format_exception_only(error)).strip()
    trace = error.__traceback__
    while trace is not None and str(trace.tb_frame.f_globals.get("__name__")).startswith(_OWN_FRAMES):
        trace = trace.tb_next  # What is left is user code's part of it.
    text = "".join(traceback.format_exception(type(error), error, trace))
    return Failure(ordinal, summary[:TRACEBACK_CHARS_MAX], text[-TRACEBACK_CHARS_MAX:], rejected)
