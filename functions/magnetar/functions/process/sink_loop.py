"""Runs a sink: the messages of an entry are written as one batch of records."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from importlib import import_module
from typing import Any

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
                channel.send(result_frame(self.run_entry(read_entry(body))))
                self._metrics.report(channel, at_once=not channel.waiting())
                if self._topic_log is not None and not channel.waiting():
                    self._topic_log.flush()
            elif kind == ToProcess.TOPIC:
                topic = json.loads(body)
                self._topics[topic["number"]] = topic["name"]
            elif kind == ToProcess.CLOSE:
                self._metrics.report(channel, at_once=True)
                return

    def run_entry(self, entry: Entry) -> Result:
        """Write the messages of one entry."""
        if entry.generation <= self._stopped.get(entry.topic, -1):
            return Result(entry.serial, entry.generation, ResultFlag.STALE, 0, 0, [], [])
        ordinals: Sequence[int] = entry.ordinals or range(entry.count)
        began = time.perf_counter_ns()
        try:
            data = bytes(entry.payload)
            payloads, metadata = split_batch(data, entry.count)
            records = [
                self._record(entry, ordinal, payloads[ordinal], raw_metadata(metadata[ordinal], data))
                for ordinal in ordinals
            ]
        except (EntryMalformed, IndexError) as error:
            failures = [Failure(ordinal, str(error), rejected=True) for ordinal in ordinals]
            return Result(entry.serial, entry.generation, ResultFlag.NONE, entry.count, 0, [], failures)
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
        elapsed = time.perf_counter_ns() - began
        return Result(entry.serial, entry.generation, ResultFlag.NONE, entry.count, elapsed, [], failures)

    def _write(self, ordinals: Sequence[int], records: list[Any]) -> list[Failure]:
        context = self._context
        context.rejected.clear()
        try:
            self._sink.write(list(records))
        except (Exception, SystemExit) as error:
            whole = describe(0, error)
            return [Failure(ordinal, whole.error, whole.traceback) for ordinal in ordinals]
        by_identity = {id(record): ordinal for ordinal, record in zip(ordinals, records, strict=True)}
        by_id = {record.message_id: ordinal for ordinal, record in zip(ordinals, records, strict=True)}
        failures = []
        for record, reason in context.rejected:
            ordinal = by_identity.get(id(record), by_id.get(getattr(record, "message_id", None)))
            if ordinal is not None:
                failures.append(describe(ordinal, reason, rejected=True))
        return sorted(failures, key=lambda failure: failure.ordinal)

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
