"""Reading the journal at start: from the mark to its end, telling a torn tail from damage in the middle.

The writer syncs each group before it writes the next one. So a damaged place that a later group follows was on disk and
was acknowledged: `JournalCorrupt`, or a loss that the bookie goes into limbo for. A damaged place that nothing follows is a group no one was told of. See
`docs/formats/journal.md`.
"""

from __future__ import annotations

from collections.abc import Iterator

from magnetar.bookie.errors import JournalCorrupt
from magnetar.bookie.limbo import Lost, refuse
from magnetar.bookie.mark import Mark
from magnetar.bookie.record import (
    BLOCK,
    FIRST_BLOCK,
    SEGMENT_FIELD,
    EntryRun,
    Kind,
    Record,
    read_record,
    read_run,
)
from magnetar.bookie.segments import OpenSegment, Segments
from magnetar.environment.logs import get_logger
from magnetar.protocol.ledger_entry import ENTRY_HEADER

_WINDOW = 1 << 20

log = get_logger("magnetar.bookie.journal")


class _SegmentReader:
    """One segment from an offset on, a window at a time."""

    def __init__(self, opened: OpenSegment) -> None:
        self._opened = opened
        self.size = opened.allocated
        self._window = b""
        self._window_at = 0

    def run(self, offset: int, sequence: int, group_first: int) -> EntryRun | None:
        """The expected entries at `offset` as far as the window goes. None where the window is to be moved first."""
        header, position = self._opened.header, offset - self._window_at
        if not 0 <= position < len(self._window):
            return None
        found = read_run(
            self._window,
            position,
            offset=offset,
            segment=header.segment,
            salt=header.salt,
            sequence=sequence,
            group_first=group_first,
        )
        return found if found.entries else None

    def next_block(self, block: int) -> int | None:
        """The first block from here on that begins as a record of this segment does: most are zeros, or an older segment's."""
        segment = self._opened.header.segment.to_bytes(8, "big")
        while block < self.size:
            window = self._opened.file.read(block, _WINDOW)
            for position in range(SEGMENT_FIELD.start, len(window), BLOCK):
                if window[position : position + len(segment)] == segment:
                    return block + position - SEGMENT_FIELD.start
            block += _WINDOW
        return None

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
    """Iterate once, over records or, faster, over `runs`; then ask `next_sequence` and `last_segment`."""

    def __init__(self, segments: Segments, mark: Mark, lost: Lost = refuse) -> None:
        """`lost` is told of damage to what was acknowledged. Where it returns, the replay goes on behind the damage."""
        self._segments = segments
        self._mark = mark
        self._lost = lost
        self.next_sequence = mark.sequence
        self.last_segment = mark.segment
        self.records = 0

    def __iter__(self) -> Iterator[Record]:
        for found in self._found(in_runs=False):
            assert isinstance(found, Record)
            yield found

    def runs(self) -> Iterator[Record | EntryRun]:
        """The same, with entries that follow one another as one."""
        return self._found(in_runs=True)

    def _found(self, *, in_runs: bool) -> Iterator[Record | EntryRun]:
        self._in_runs = in_runs
        mark = self._mark
        ids = [segment for segment in self._segments.ids() if segment >= mark.segment]
        if not ids or ids[0] != mark.segment:
            self._lose(mark.segment, "the segment that lastMark names is missing")
        expected = mark.segment
        for segment in ids:
            if segment != expected and segment != ids[0]:
                self._lose(expected, "the segment is missing")
            expected = segment + 1
            yield from self._segment(segment, expected if expected in ids else None, segment == ids[-1])
            self.last_segment = segment

    def _lose(self, segment: int, reason: str) -> None:
        self._lost(JournalCorrupt(self._segments.path(segment), 0, reason))

    def _segment(self, segment: int, next_segment: int | None, is_last: bool) -> Iterator[Record | EntryRun]:
        opened = self._read(segment)
        if opened is None:
            return
        try:
            # A killed process's last group may lie in the page cache alone. It counts from here on, so it must last.
            opened.file.sync()
            offset = self._mark.offset if segment == self._mark.segment else FIRST_BLOCK
            self._expect_start(opened)
            follower = None
            if next_segment is not None:
                follower = self._read(next_segment, quietly=True)
                if follower is not None:
                    follower.file.close()
            yield from self._replay(opened, offset, follower, is_last=is_last)
        finally:
            opened.file.close()

    def _read(self, segment: int, *, quietly: bool = False) -> OpenSegment | None:
        try:
            return self._segments.read(segment)
        except JournalCorrupt as error:
            if not quietly:  # It is told of when its turn comes.
                self._lost(error)
            return None

    def _expect_start(self, opened: OpenSegment) -> None:
        first = opened.header.first_sequence
        if opened.header.segment == self._mark.segment:
            if first > self._mark.sequence:
                self._lose(opened.header.segment, f"begins with record {first}, behind {self._mark.sequence}")
                self.next_sequence = first
        elif first != self.next_sequence:
            self._lost(
                JournalCorrupt(
                    opened.path, 0, f"begins with record {first} where {self.next_sequence} was expected"
                )
            )
            self.next_sequence = first

    def _replay(
        self, opened: OpenSegment, offset: int, follower: OpenSegment | None, *, is_last: bool
    ) -> Iterator[Record | EntryRun]:
        reader = _SegmentReader(opened)
        group_first = self.next_sequence
        while True:
            run = reader.run(offset, self.next_sequence, group_first) if self._in_runs else None
            if run is not None:
                offset, group_first = run.end, run.group_first
                self.next_sequence += len(run.entries)
                self.records += len(run.entries)
                yield run
                continue
            record = reader.record(offset)
            if record is None or record.sequence != self.next_sequence or record.group_first != group_first:
                later = self._judge(opened, reader, offset, group_first, follower, is_last=is_last)
                if later is None:
                    return
                offset, self.next_sequence, group_first = later
                continue
            self.next_sequence += 1
            self.records += 1
            yield _as_run(record) if self._in_runs and record.kind is Kind.ENTRY else record
            offset = record.end
            if record.ends_group:
                offset = -(-offset // BLOCK) * BLOCK
                group_first = self.next_sequence

    def _judge(
        self,
        opened: OpenSegment,
        reader: _SegmentReader,
        offset: int,
        group_first: int,
        follower: OpenSegment | None,
        *,
        is_last: bool,
    ) -> tuple[int, int, int] | None:
        """The records end at `offset`: is it the end, a torn tail, or damage? Returns where to go on, if anywhere."""
        if follower is not None and follower.header.first_sequence == self.next_sequence:
            return None
        later = self._later_group(reader, offset, group_first)
        if later is not None:
            self._lost(
                JournalCorrupt(
                    opened.path,
                    offset,
                    f"record {self.next_sequence} is damaged, but a later group is whole at offset {later[0]}",
                )
            )
            return later
        if follower is not None:
            self._lost(
                JournalCorrupt(
                    opened.path,
                    offset,
                    f"record {self.next_sequence} is damaged; {follower.path.name} goes on with "
                    f"{follower.header.first_sequence}",
                )
            )
            self.next_sequence = follower.header.first_sequence
        elif is_last and self._looks_written(opened, offset):
            log.warning(
                "journal.tail_cut",
                file=str(opened.path),
                offset=offset,
                next_record=self.next_sequence,
                reason="the last group was torn or damaged; nothing in it can have been followed by another",
            )
        return None

    def _later_group(
        self, reader: _SegmentReader, offset: int, group_first: int
    ) -> tuple[int, int, int] | None:
        """Where a record of a later group lies, its number, and that of its group's first.

        A group begins on a block, so only blocks are looked at.
        """
        block = (offset // BLOCK + 1) * BLOCK
        while (found := reader.next_block(block)) is not None:
            record = reader.record(found)
            if record is not None and record.group_first > group_first:
                return found, record.sequence, record.group_first
            block = found + BLOCK
        return None

    def _looks_written(self, opened: OpenSegment, offset: int) -> bool:
        """Whether this process's predecessor began a record here: neither zeros nor another segment's bytes."""
        segment = opened.header.segment.to_bytes(8, "big")
        field = SEGMENT_FIELD
        return offset % BLOCK != 0 or opened.file.read(offset + field.start, len(segment)) == segment


def _as_run(record: Record) -> EntryRun:
    """The first entry in a window, which was found out to be whole by itself."""
    header, payload = record.body
    ledger_id, entry_id, lac = ENTRY_HEADER.unpack(header)[:3]
    size = len(header) + len(payload)
    return EntryRun([(ledger_id, entry_id, lac, size, (header, payload))], record.end, record.group_first)
