"""Runs a sink: the messages of the entries at hand are written as one batch of records."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

from magnetar.functions.errors import EntryMalformed
from magnetar.functions.process.channel import Channel
from magnetar.functions.process.current_message import Decoded, MessageId
from magnetar.functions.process.function_loop import describe
from magnetar.functions.process.heart import Heart
from magnetar.functions.process.job import Job
from magnetar.functions.process.log_capture import TopicHandler
from magnetar.functions.process.members import raw_metadata, split_batch
from magnetar.functions.process.metrics import UserMetrics
from magnetar.functions.process.user_context import SinkContext
from magnetar.functions.process.wire import (
    Entry,
    EntryFlag,
    Failure,
    Result,
    ResultFlag,
    ToProcess,
    read_entry,
    result_frame,
)

K = TypeVar("K")

GROUP_RECORDS_MAX = 1000
GROUP_BYTES_MAX = 1024 * 1024
"""So much is written at once where entries are smaller than that. Nothing is waited for."""


@dataclass(slots=True)
class Unpacked:
    """An entry and its records."""

    entry: Entry
    ordinals: Sequence[int]
    records: list[Any]


class SinkLoop:
    """Opens the sink, and feeds it until told to close."""

    def __init__(self, job: Job, sink: Any, channel: Channel, topic_log: TopicHandler | None = None) -> None:
        self._job = job
        self._sink = sink
        self._channel = channel
        self._topic_log = topic_log
        self._metrics = UserMetrics()
        self._context = SinkContext(job, self._metrics)
        module, _, name = job.record_class.rpartition(".")
        self._record_class = getattr(import_module(module), name)
        self._topics: dict[int, str] = {}
        self._stopped: dict[int, int] = {}
        self._heart = Heart(channel, job.beat_every_s)

    def open(self) -> None:
        """Raises what the sink raises: its config is wrong, or the outside world is not there."""
        self._sink.open(dict(self._job.configs), self._context)

    def close(self) -> None:
        self._sink.close()

    def run(self) -> None:
        """Work until told to close. Raises HostGone."""
        channel = self._channel
        while True:
            kind, body = channel.receive()
            if kind == ToProcess.ENTRY:
                for result in self.run_entries(self._at_hand(read_entry(body))):
                    channel.queue(result_frame(result))
                channel.flush()
                self._metrics.report(channel, at_once=not channel.waiting())
                if self._topic_log is not None and not channel.waiting():
                    self._topic_log.flush()
            elif kind == ToProcess.TOPIC:
                self._add_topic(body)
            elif kind == ToProcess.CLOSE:
                self._metrics.report(channel, at_once=True)
                return

    def _add_topic(self, body: bytes) -> None:
        topic = json.loads(body)
        self._topics[topic["number"]] = topic["name"]

    def _at_hand(self, first: Entry) -> list[Entry]:
        """`first`, and those that have come after it and may be written with it."""
        entries, size, count = [first], len(first.payload), first.count
        if not self._may_share(first):
            return entries
        while size < GROUP_BYTES_MAX and count < GROUP_RECORDS_MAX and self._channel.waiting():
            kind, body = self._channel.receive()
            if kind == ToProcess.TOPIC:
                self._add_topic(body)
                continue
            entry = read_entry(body) if kind == ToProcess.ENTRY else None
            if (
                entry is None
                or not self._may_share(entry)
                or size + len(entry.payload) > GROUP_BYTES_MAX
                or count + entry.count > GROUP_RECORDS_MAX
            ):
                self._channel.put_back(kind, body)
                break
            entries.append(entry)
            size += len(entry.payload)
            count += entry.count
        return entries

    def _may_share(self, entry: Entry) -> bool:
        """A write that fails is done over in smaller ones, which at-most-once does not allow."""
        return (
            not entry.flags & (EntryFlag.ALONE | EntryFlag.ISOLATE) and self._job.guarantee != "ATMOST_ONCE"
        )

    def run_entries(self, entries: list[Entry]) -> list[Result]:
        """Write the messages of several entries at once; if that fails, those of each entry by themselves."""
        if len(entries) == 1:
            return [self.run_entry(entries[0])]
        began = time.perf_counter_ns()
        try:
            unpacked = [self._unpack(entry) for entry in entries if not self._is_stale(entry)]
        except (EntryMalformed, IndexError):
            return [self.run_entry(entry) for entry in entries]
        records = [record for part in unpacked for record in part.records]
        keys = [(part.entry.serial, ordinal) for part in unpacked for ordinal in part.ordinals]
        self._heart.begin(entries[0].serial, [])
        try:
            rejected = self._attempt(keys, records)
        except (Exception, SystemExit):
            # One of them may be at fault, and what the sink said of all of them says nothing of each.
            return [self.run_entry(entry) for entry in entries]
        finally:
            self._heart.end()
        failures: dict[int, list[Failure]] = {}
        for (serial, ordinal), reason in rejected:
            failures.setdefault(serial, []).append(describe(ordinal, reason, rejected=True))
        each = (time.perf_counter_ns() - began) // len(entries)
        return [
            self._stale(entry)
            if self._is_stale(entry)
            else self._result(entry, each, sorted(failures.get(entry.serial, []), key=_ordinal))
            for entry in entries
        ]

    def run_entry(self, entry: Entry) -> Result:
        """Write the messages of one entry."""
        if self._is_stale(entry):
            return self._stale(entry)
        began = time.perf_counter_ns()
        try:
            unpacked = self._unpack(entry)
        except (EntryMalformed, IndexError) as error:
            ordinals = entry.ordinals or range(entry.count)
            return self._result(
                entry, 0, [Failure(ordinal, str(error), rejected=True) for ordinal in ordinals]
            )
        ordinals, records = unpacked.ordinals, unpacked.records
        self._heart.begin(entry.serial, [])
        if entry.flags & EntryFlag.ISOLATE and len(records) > 1:
            failures = [
                f for o, record in zip(ordinals, records, strict=True) for f in self._write([o], [record])
            ]
        else:
            failures = self._write(ordinals, records)
        self._heart.end()
        if (
            self._job.ordered
            and any(not failure.rejected for failure in failures)
            and not self._job.failures_are_final
        ):
            self._stopped[entry.topic] = entry.generation
        return self._result(entry, time.perf_counter_ns() - began, failures)

    def _is_stale(self, entry: Entry) -> bool:
        return entry.generation <= self._stopped.get(entry.topic, -1)

    def _stale(self, entry: Entry) -> Result:
        return Result(entry.serial, entry.generation, ResultFlag.STALE, 0, 0, [], [])

    def _result(self, entry: Entry, elapsed_ns: int, failures: list[Failure]) -> Result:
        return Result(entry.serial, entry.generation, ResultFlag.NONE, entry.count, elapsed_ns, [], failures)

    def _unpack(self, entry: Entry) -> Unpacked:
        """Raises EntryMalformed or IndexError."""
        ordinals: Sequence[int] = entry.ordinals or range(entry.count)
        data = bytes(entry.payload)
        payloads, metadata = split_batch(data, entry.count)
        records = [
            self._record(entry, ordinal, payloads[ordinal], raw_metadata(metadata[ordinal], data))
            for ordinal in ordinals
        ]
        return Unpacked(entry, ordinals, records)

    def _write(self, ordinals: Sequence[int], records: list[Any]) -> list[Failure]:
        try:
            rejected = self._attempt(ordinals, records)
        except (Exception, SystemExit) as error:
            whole = describe(0, error)
            return [Failure(ordinal, whole.error, whole.traceback) for ordinal in ordinals]
        return sorted(
            (describe(ordinal, reason, rejected=True) for ordinal, reason in rejected), key=_ordinal
        )

    def _attempt(self, keys: Sequence[K], records: list[Any]) -> list[tuple[K, Exception]]:
        """Write the records; returns the keys of those that the sink rejects. Raises what the sink raises."""
        context = self._context
        context.rejected.clear()
        self._sink.write(list(records))
        by_identity = {id(record): key for key, record in zip(keys, records, strict=True)}
        by_id = {record.message_id: key for key, record in zip(keys, records, strict=True)}
        rejected = []
        for record, reason in context.rejected:
            key = by_identity.get(id(record), by_id.get(getattr(record, "message_id", None)))
            if key is not None:
                rejected.append((key, reason))
        return rejected

    def _record(self, entry: Entry, ordinal: int, payload: bytes, metadata: bytes) -> Any:
        decoded = Decoded(metadata)
        message_id = MessageId(
            entry.ledger_id, entry.entry_id, entry.partition, ordinal if entry.count > 1 else -1
        )
        return self._record_class(
            value=payload,
            key=decoded.key_text if decoded.key is not None else None,
            properties=decoded.properties,
            event_time_ms=decoded.event_time or None,
            topic=self._topics[entry.topic],
            message_id=":".join(
                str(part)
                for part in (
                    message_id.ledger_id(),
                    message_id.entry_id(),
                    message_id.partition(),
                    message_id.batch_index(),
                )
            ),
        )


def _ordinal(failure: Failure) -> int:
    return failure.ordinal
