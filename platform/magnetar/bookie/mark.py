"""The `lastMark` file: how far the journal is safe elsewhere. Format: `docs/formats/bookie-directory.md`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from magnetar.bookie.errors import DirectoryDamaged, NewerFormat
from magnetar.environment.crash import crash_point
from magnetar.environment.disk import Disk
from magnetar.protocol.checksum import crc32c

_VERSION = 1
FILE_NAME = "lastMark"


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """A place in the journal: the record `sequence` is at `offset` of `segment`, or begins a later segment."""

    segment: int
    offset: int
    sequence: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What of the storage is durable, and the journal's mark that follows from it."""

    mark: Mark
    logs: Mapping[int, int] = field(default_factory=dict)
    """The entry logs that must exist, and how long each is at least."""
    ledgers: int = 1
    """The number of the ledger table that counts."""
    ledgers_end: int = 0
    """How long it is at least."""


class MarkFile:
    """Reads and replaces the file; never lets the mark move backwards."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self.path = directory / FILE_NAME
        self._last: Checkpoint | None = None

    def read(self) -> Checkpoint:
        """What counts, durably: a killed process may not have come to sync the name of the file that is there now.

        Raises: DirectoryDamaged, NewerFormat.
        """
        self._disk.sync_directory(self.path.parent)
        try:
            text, _, checksum = self._disk.read_file(self.path).rstrip(b"\n").partition(b"\n")
        except FileNotFoundError as error:
            raise DirectoryDamaged(
                self.path, "the file is missing, so the directory has lost data"
            ) from error
        try:
            if int(checksum, 16) != crc32c(text):
                raise DirectoryDamaged(self.path, "the checksum differs")
            fields = json.loads(text)
            if fields["version"] > _VERSION:
                raise NewerFormat(self.path, fields["version"], _VERSION)
            checkpoint = Checkpoint(
                Mark(fields["segment"], fields["offset"], fields["sequence"]),
                {int(log): end for log, end in fields["logs"].items()},
                fields["ledgers"],
                fields["ledgers_end"],
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DirectoryDamaged(self.path, f"unreadable: {error}") from error
        self._last = checkpoint
        return checkpoint

    def write(self, checkpoint: Checkpoint) -> None:
        """Make `checkpoint` what counts, durably. A mark behind the last one is replaced by the last one."""
        if self._last is not None and checkpoint.mark < self._last.mark:
            checkpoint = replace(checkpoint, mark=self._last.mark)
        mark = checkpoint.mark
        text = json.dumps(
            {
                "version": _VERSION,
                "segment": mark.segment,
                "offset": mark.offset,
                "sequence": mark.sequence,
                "logs": {str(log): end for log, end in sorted(checkpoint.logs.items())},
                "ledgers": checkpoint.ledgers,
                "ledgers_end": checkpoint.ledgers_end,
            }
        ).encode()
        crash_point("bookie.mark.before_write")
        self._disk.replace_file(self.path, text + b"\n%08x\n" % crc32c(text))
        crash_point("bookie.mark.after_write")
        self._last = checkpoint
