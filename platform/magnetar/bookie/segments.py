"""The files of the journal: their headers, spares prepared ahead, and what happens to those behind the mark."""

from __future__ import annotations

import random
import struct
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from magnetar.bookie.errors import JournalCorrupt, NewerFormat
from magnetar.bookie.mark import Mark
from magnetar.bookie.record import BLOCK, FIRST_BLOCK
from magnetar.environment.clock import Clock
from magnetar.environment.crash import crash_point
from magnetar.environment.disk import Disk, DiskFile
from magnetar.environment.logs import get_logger
from magnetar.protocol.checksum import crc32c

VERSION: Final = 1
FIRST_SEGMENT: Final = 1
_MAGIC = b"MGJL"
_COVERED = struct.Struct(">IIQQQI")
_CHECKSUM = struct.Struct(">I")
_HEADER_BYTES = len(_MAGIC) + _CHECKSUM.size + _COVERED.size
SUFFIX: Final = ".journal"
_SPARE_SUFFIX = ".spare"
_SPARES_MAX = 2

log = get_logger("magnetar.bookie.journal")


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    segment: int
    first_sequence: int
    salt: int
    """Random: record checksums start from it, so no other segment's bytes nor a payload pass for a record."""


@dataclass(frozen=True, slots=True)
class OpenSegment:
    header: SegmentHeader
    path: Path
    file: DiskFile
    allocated: int
    """Up to here the file has real blocks."""


class Segments:
    """The journal's directory. Methods may be called from several threads."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        *,
        segment_bytes: int,
        first_bytes: int,
        clock: Clock,
        salts: random.Random | None = None,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self.segment_bytes = segment_bytes
        self.first_bytes = max(first_bytes, 2 * BLOCK)
        self._clock = clock
        self._salts = salts if salts is not None else random.SystemRandom()
        self._lock = threading.Lock()
        self._spares: list[Path] = []
        self._spare_number = 0

    def path(self, segment: int) -> Path:
        return self._directory / f"{segment:016x}{SUFFIX}"

    def ids(self) -> list[int]:
        """The segments there are, in order."""
        names = self._disk.list(self._directory)
        return sorted(int(name[: -len(SUFFIX)], 16) for name in names if name.endswith(SUFFIX))

    def beginning(self) -> Mark:
        """Where the first segment that can be read begins: all that can be replayed lies behind it."""
        for segment in self.ids():
            try:
                opened = self.read(segment)
            except JournalCorrupt as error:
                log.error("journal.segment_unreadable", reason=str(error))
                continue
            opened.file.close()
            return Mark(segment, FIRST_BLOCK, opened.header.first_sequence)
        return Mark(max(self.ids(), default=FIRST_SEGMENT), FIRST_BLOCK, 1)

    def read(self, segment: int) -> OpenSegment:
        """Open a segment for reading.

        Raises:
            JournalCorrupt: it is missing, or its header is not one.
            NewerFormat: a newer version has written it.
        """
        path = self.path(segment)
        try:
            file = self._disk.open(path)
        except FileNotFoundError as error:
            raise JournalCorrupt(path, 0, "the segment is missing") from error
        header = file.read(0, _HEADER_BYTES)
        start = len(_MAGIC) + _CHECKSUM.size
        if len(header) < _HEADER_BYTES or not header.startswith(_MAGIC):
            raise JournalCorrupt(path, 0, "no header")
        if _CHECKSUM.unpack_from(header, len(_MAGIC))[0] != crc32c(header[start:]):
            raise JournalCorrupt(path, 0, "the header's checksum differs")
        version, block, segment_id, first_sequence, _, salt = _COVERED.unpack_from(header, start)
        if version > VERSION:
            raise NewerFormat(path, version, VERSION)
        if segment_id != segment or block != BLOCK:
            raise JournalCorrupt(
                path, 0, f"the header is that of segment {segment_id}, blocks of {block} bytes"
            )
        return OpenSegment(SegmentHeader(segment, first_sequence, salt), path, file, file.size())

    def create(self, segment: int, first_sequence: int) -> OpenSegment:
        """A new segment, durable under its name, with zeroed or recycled blocks behind the header.

        After an error that is no `DiskFailed` it may be asked for again.
        """
        with self._lock:
            prepared = self._spares.pop() if self._spares else None
        if prepared is None:
            prepared = self._next_spare()
            file = self._zeroed(prepared, self.first_bytes)
        else:
            file = self._disk.open(prepared, writable=True)
        header = SegmentHeader(segment, first_sequence, self._salts.getrandbits(32))
        try:
            file.write(0, [_encode_header(header, self._clock.time_ms())])
        except OSError:
            file.close()
            with self._lock:
                self._spares.append(prepared)
            raise
        crash_point("bookie.journal.segment_written")
        file.sync()
        path = self.path(segment)
        crash_point("bookie.journal.segment_synced")
        self._disk.rename(prepared, path)
        crash_point("bookie.journal.segment_renamed")
        self._disk.sync_directory(self._directory)
        crash_point("bookie.journal.segment_ready")
        return OpenSegment(header, path, file, file.size())

    @property
    def has_spare(self) -> bool:
        return bool(self._spares)

    def prepare_spare(self) -> None:
        """Lay down a full segment of zeros for the next `create`, unless there is one. Nothing is left of a failure."""
        if self._spares:
            return
        path = self._next_spare()
        file = self._zeroed(path, self.segment_bytes)
        crash_point("bookie.journal.spare_written")
        file.sync()
        file.close()
        crash_point("bookie.journal.spare_synced")
        with self._lock:
            self._spares.append(path)

    def _zeroed(self, path: Path, size: int) -> DiskFile:
        file = self._disk.create(path)
        try:
            file.allocate(0, size)
        except OSError:  # The disk is full: it is not to stay full for this.
            file.close()
            self._disk.remove(path)
            raise
        return file

    def release(self, before: int) -> None:
        """Segments below `before` are behind the mark: keep a few as spares, remove the others."""
        behind = [segment for segment in self.ids() if segment < before]
        for segment in behind:
            path = self.path(segment)
            if len(self._spares) < _SPARES_MAX and self._size(path) >= self.segment_bytes:
                spare = self._next_spare()
                self._disk.rename(path, spare)
                with self._lock:
                    self._spares.append(spare)
            else:
                self._disk.remove(path)
        if behind:
            crash_point("bookie.journal.before_release")
            self._disk.sync_directory(self._directory)
            crash_point("bookie.journal.released")
            log.debug("journal.released", segments=behind)

    def remove_spares(self) -> None:
        """At start: whatever an earlier process had prepared."""
        for name in self._disk.list(self._directory):
            if name.endswith(_SPARE_SUFFIX):
                self._disk.remove(self._directory / name)

    def _size(self, path: Path) -> int:
        file = self._disk.open(path)
        try:
            return file.size()
        finally:
            file.close()

    def _next_spare(self) -> Path:
        with self._lock:
            self._spare_number += 1
            return self._directory / f"spare-{self._spare_number}{_SPARE_SUFFIX}"


def _encode_header(header: SegmentHeader, now_ms: int) -> bytes:
    covered = _COVERED.pack(VERSION, BLOCK, header.segment, header.first_sequence, now_ms, header.salt)
    encoded = _MAGIC + _CHECKSUM.pack(crc32c(covered)) + covered
    return encoded + bytes(FIRST_BLOCK - len(encoded))
