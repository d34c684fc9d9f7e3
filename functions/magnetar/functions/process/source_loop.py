"""Runs a source: records in, batches out, a few of them ahead of their receipts."""

from __future__ import annotations

import json
from typing import Any

from magnetar.functions.errors import FunctionsError
from magnetar.functions.process.channel import Channel
from magnetar.functions.process.function_loop import BATCH_BYTES_MAX, MESSAGE_BYTES_MAX
from magnetar.functions.process.job import Job
from magnetar.functions.process.log_capture import TopicHandler
from magnetar.functions.process.members import join_members, property_field, varint
from magnetar.functions.process.metrics import UserMetrics
from magnetar.functions.process.routing import partition_of
from magnetar.functions.process.user_context import SourceContext
from magnetar.functions.process.wire import RecordGroup, ToHost, ToProcess, json_frame, records_frame

AHEAD_MAX = 8
"""Frames of records on their way; a source that reads faster than the broker stores waits."""


class SourceLoop:
    """Opens the source, reads until it has ended or is told to close."""

    def __init__(
        self, job: Job, source: Any, channel: Channel, topic_log: TopicHandler | None = None
    ) -> None:
        self._job = job
        self._source = source
        self._channel = channel
        self._topic_log = topic_log
        self._metrics = UserMetrics()
        self._context = SourceContext(job, self._metrics, channel)
        self._outstanding: set[int] = set()
        self._turn = 0

    def open(self) -> None:
        """Raises what the source raises: its config is wrong, or the outside world is not there."""
        self._source.open(dict(self._job.configs), self._context)

    def close(self) -> None:
        self._source.close()

    def run(self) -> None:
        """Work until told to close. Raises HostGone, and what the source raises: the process then starts anew."""
        while True:
            while len(self._outstanding) >= AHEAD_MAX or self._channel.waiting():
                if not self._hear():
                    return
            records = self._source.read()
            if records is None:
                self._metrics.report(self._channel, at_once=True)
                self._channel.send(json_frame(ToHost.ENDED, {}))
                while self._hear():
                    pass
                return
            batch = records if isinstance(records, list) else [records]
            if batch:
                self._send(batch)
            self._metrics.report(self._channel, at_once=False)
            if self._topic_log is not None:
                self._topic_log.flush()

    def _hear(self) -> bool:
        """Wait for one frame; False when it says to close."""
        kind, body = self._channel.receive()
        if kind == ToProcess.ANSWER:
            self._outstanding.discard(json.loads(body)["call"])
        return kind != ToProcess.CLOSE

    def _send(self, records: list[Any]) -> None:
        groups: dict[tuple[str, int], list[Any]] = {}
        for record in records:
            groups.setdefault((record.partition_id or "", self._route(record)), []).append(record)
        packed = [group for slot, members in groups.items() for group in _pack(*slot, members)]
        number = self._channel.number_call()
        self._outstanding.add(number)
        self._channel.send(records_frame(number, packed))

    def _route(self, record: Any) -> int:
        """The output's partition: by key, else by sequence so that a repeat goes the same way, else in turn."""
        partitions = self._job.output_partitions
        if not partitions:
            return -1
        if record.key is not None:
            return partition_of(record.key.encode(), partitions)
        if record.sequence is not None:
            return int(record.sequence) % partitions
        self._turn += 1
        return self._turn % partitions


def _pack(partition_id: str, route: int, records: list[Any]) -> list[RecordGroup]:
    """The records of one partition as batches of bounded size."""
    groups = []
    payloads: list[bytes] = []
    befores: list[bytes] = []
    afters: list[bytes] = []
    size = 0
    first = 0
    for number, record in enumerate(records):
        value = record.value
        if not isinstance(value, bytes):
            raise FunctionsError(f"a record's value is {type(value).__name__}, not bytes")
        if len(value) > MESSAGE_BYTES_MAX:
            raise FunctionsError(f"a record of {len(value)} bytes; a message has {MESSAGE_BYTES_MAX} at most")
        if payloads and size + len(value) > BATCH_BYTES_MAX:
            batch = join_members(payloads, befores, afters)
            groups.append(_group(partition_id, route, records[first:number], batch))
            payloads, befores, afters, size, first = [], [], [], 0, number
        payloads.append(value)
        befores.append(_before(record))
        afters.append(_after(record))
        size += len(value) + len(befores[-1])
    groups.append(_group(partition_id, route, records[first:], join_members(payloads, befores, afters)))
    return groups


def _group(partition_id: str, route: int, records: list[Any], batch: bytes) -> RecordGroup:
    lowest, highest = records[0].sequence, records[-1].sequence
    return RecordGroup(
        partition_id,
        route,
        len(records),
        -1 if lowest is None else lowest,
        -1 if highest is None else highest,
        batch,
    )


def _before(record: Any) -> bytes:
    fields = b"".join(property_field(key, value.encode()) for key, value in record.properties.items())
    if record.key is not None:
        key = record.key.encode()
        fields += b"\x12" + varint(len(key)) + key
    return fields


def _after(record: Any) -> bytes:
    fields = b"" if record.event_time_ms is None else b"\x28" + varint(record.event_time_ms)
    return fields if record.sequence is None else fields + b"\x40" + varint(record.sequence)
