"""The file source: file after file, at the pace asked for."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from magnetar.connectors.errors import MalformedRecord, SourceUnreadable
from magnetar.connectors.file.listing import InputFile, list_files
from magnetar.connectors.file.reader import FileReader
from magnetar.connectors.file.rows import HeaderMissing
from magnetar.connectors.file.settings import FileSettings
from magnetar.connectors.interfaces import Record, Source, SourceContext

LONGEST_WAIT_S = 1.0
"""A read returns at least this often, so that a stop is noticed."""
PACE_SLICE_S = 0.05
"""Where the rate is limited, records go out in slices of so long."""


class FileSource(Source):
    """Publishes the rows of files. Its configuration: `settings.FIELDS`.

    The instances of one source share the files out among them, each file to one.
    """

    def __init__(
        self,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._monotonic = monotonic
        self._sleep = sleep
        self._reader: FileReader | None = None

    def open(self, config: Mapping[str, Any], context: SourceContext) -> None:
        self._settings = FileSettings.parse(config)
        self._context = context
        self._offsets: dict[str, int] = {}  # Of the files met so far, by partition: how far they are read.
        self._round = iter(self._mine(list_files(self._settings)))
        self._next_poll = 0.0
        self._pace_started = self._monotonic()
        self._handed_out = 0

    def read(self) -> list[Record] | None:
        settings = self._settings
        records_max = min(settings.batch_records, self._allowance())
        if records_max == 0:
            return []
        while True:
            if self._reader is None and not self._open_next():
                return self._wait_for_more() if settings.follow else None
            assert self._reader is not None
            records = self._reader.read(records_max, settings.batch_bytes)
            if records:
                self._handed_out += len(records)
                return records
            self._offsets[self._reader.file.partition_id] = self._reader.offset
            self._close_reader()

    def close(self) -> None:
        self._close_reader()

    def _open_next(self) -> bool:
        """Open the next file of this round that may hold something new."""
        for file in self._round:
            offset = self._offsets.get(file.partition_id)
            if offset is None:
                offset = self._context.last_sequence(file.partition_id)
            elif not _has_grown(file, offset):
                continue
            try:
                self._reader = FileReader(file, self._settings, offset, self._on_malformed)
            except HeaderMissing:
                if not self._settings.follow:
                    raise
                continue
            return True
        return False

    def _wait_for_more(self) -> list[Record]:
        """Until the next poll is due, or for as long as a read may take."""
        now = self._monotonic()
        if now < self._next_poll:
            self._sleep(min(self._next_poll - now, LONGEST_WAIT_S))
            return []
        self._next_poll = now + self._settings.poll_ms / 1000
        self._round = iter(self._mine(list_files(self._settings)))
        return []

    def _allowance(self) -> int:
        """How many records the rate allows now: a slice's worth, or none after as long as a read may wait.

        A slice rather than record by record, because each read becomes a batch of its own.
        """
        settings = self._settings
        if not settings.rate:
            return settings.batch_records
        slice_records = min(settings.batch_records, max(1, int(settings.rate * PACE_SLICE_S)))
        due_in_s = (self._handed_out + slice_records) / settings.rate - (
            self._monotonic() - self._pace_started
        )
        if due_in_s > 0:
            self._sleep(min(due_in_s, LONGEST_WAIT_S))
        elif due_in_s < -LONGEST_WAIT_S:  # It was held up: that is not caught up with in a burst.
            self._pace_started, self._handed_out = self._monotonic(), 0
        return slice_records if due_in_s <= LONGEST_WAIT_S else 0

    def _mine(self, files: list[InputFile]) -> list[InputFile]:
        context = self._context
        return [
            file
            for file in files
            if zlib.crc32(file.partition_id.encode()) % context.num_instances == context.instance_id
        ]

    def _on_malformed(self, error: MalformedRecord) -> None:
        if self._settings.on_error == "fail":
            raise error
        self._context.logger.warning("skipped: %s", error)
        self._context.record_metric("skipped_rows", 1)

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None


def _has_grown(file: InputFile, offset: int) -> bool:
    try:
        size = os.stat(file.path).st_size
    except FileNotFoundError:
        return False
    if size < offset:
        raise SourceUnreadable(
            file.path, f"has shrunk to {size} bytes after {offset} were read: it was replaced"
        )
    return size > offset
