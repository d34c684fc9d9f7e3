"""Reading the journal at start: from the mark to its end, telling a torn tail from damage in the middle.

The writer syncs each group before it writes the next one. So a damaged place that a later group follows was on disk and
was acknowledged: `JournalCorrupt`. A damaged place that nothing follows is a group no one was told of. See
`docs/formats/journal.md`.
"""

from __future__ import annotations

from collections.abc import Iterator

from magnetar.bookie.errors import JournalCorrupt
from magnetar.bookie.mark import Mark
from magnetar.bookie.record import BLOCK, FIRST_BLOCK, Record, read_record
from magnetar.bookie.segments import OpenSegment, Segments
from magnetar.environment.logs import get_logger

_WINDOW = 1 << 20

log = get_logger("magnetar.bookie.journal")


class _SegmentReader:
    """One segment from an offset on, a window at a time."""

    def __init__(self, opened: OpenSegment) -> None:
        self._opened = opened
        self.size = opened.allocated
        self._window = b""
        self._window_at = 0

    def record(self, offset: int) -> Record | None:
        header = self._opened.header
        needed = BLOCK
        while True:
            if offset < self._window_at or offset + needed > self._window_at + len(self._window):
                self._window = self._opened.file.read(offset, max(needed, _WINDOW))
                self._window_at = offset
            position = offset - self._window_at
            found = read_record(
                self._window, position, offset=offset, segment=header.segment, salt=header.salt
            )
            if isinstance(found, int):
                if offset + found > self.size:
                    return None
                needed = found
                continue
            return found


class JournalReplay:
    """Iterate once; then ask `next_sequence` and `last_segment`."""

    def __init__(self, segments: Segments, mark: Mark) -> None:
        self._segments = segments
        self._mark = mark
        self.next_sequence = mark.sequence
        self.last_segment = mark.segment
        self.records = 0

    def __iter__(self) -> Iterator[Record]:
        ids = [segment for segment in self._segments.ids() if segment >= self._mark.segment]
        if not ids or ids[0] != self._mark.segment:
            raise JournalCorrupt(
                self._segments.path(self._mark.segment), 0, "the segment that lastMark names is missing"
            )
        for expected, segment in enumerate(ids, start=self._mark.segment):
            if segment != expected:
                raise JournalCorrupt(self._segments.path(expected), 0, "the segment is missing")
            opened = self._segments.read(segment)
            try:
                # A killed process's last group may lie in the page cache alone. It counts from here on, so it must last.
                opened.file.sync()
                offset = self._mark.offset if segment == self._mark.segment else FIRST_BLOCK
                self._expect_start(opened)
                follower = self._follower(segment + 1) if segment != ids[-1] else None
                yield from self._replay(opened, offset, follower)
            finally:
                opened.file.close()
            self.last_segment = segment

    def _expect_start(self, opened: OpenSegment) -> None:
        first = opened.header.first_sequence
        at_mark = opened.header.segment == self._mark.segment
        if first > self._mark.sequence if at_mark else first != self.next_sequence:
            raise JournalCorrupt(
                opened.path, 0, f"begins with record {first} where {self.next_sequence} was expected"
            )

    def _follower(self, segment: int) -> OpenSegment:
        opened = self._segments.read(segment)
        opened.file.close()
        return opened

    def _replay(self, opened: OpenSegment, offset: int, follower: OpenSegment | None) -> Iterator[Record]:
        reader = _SegmentReader(opened)
        group_first = self.next_sequence
        while True:
            record = reader.record(offset)
            if record is None or record.sequence != self.next_sequence or record.group_first != group_first:
                break
            self.next_sequence += 1
            self.records += 1
            yield record
            offset = record.end
            if record.ends_group:
                offset = -(-offset // BLOCK) * BLOCK
                group_first = self.next_sequence
        self._judge(opened, reader, offset, group_first, follower)

    def _judge(
        self,
        opened: OpenSegment,
        reader: _SegmentReader,
        offset: int,
        group_first: int,
        follower: OpenSegment | None,
    ) -> None:
        """The records end at `offset`: is it the end, a torn tail, or damage?"""
        if follower is not None:
            if follower.header.first_sequence != self.next_sequence:
                raise JournalCorrupt(
                    opened.path,
                    offset,
                    f"record {self.next_sequence} is damaged; {follower.path.name} goes on with "
                    f"{follower.header.first_sequence}",
                )
            return
        later = self._later_group(reader, offset, group_first)
        if later is not None:
            raise JournalCorrupt(
                opened.path,
                offset,
                f"record {self.next_sequence} is damaged, but a later group is whole at offset {later}",
            )
        if self._looks_written(opened, offset):
            log.warning(
                "journal.tail_cut",
                file=str(opened.path),
                offset=offset,
                next_record=self.next_sequence,
                reason="the last group was torn or damaged; nothing in it can have been followed by another",
            )

    def _later_group(self, reader: _SegmentReader, offset: int, group_first: int) -> int | None:
        """Where a record of a later group lies. A group begins on a block, so only blocks are looked at."""
        for block in range((offset // BLOCK + 1) * BLOCK, reader.size, BLOCK):
            record = reader.record(block)
            if record is not None and record.group_first > group_first:
                return block
        return None

    def _looks_written(self, opened: OpenSegment, offset: int) -> bool:
        """Whether this process's predecessor began a record here: neither zeros nor another segment's bytes."""
        segment = opened.header.segment.to_bytes(8, "big")
        return offset % BLOCK != 0 or opened.file.read(offset + 8, 8) == segment
