"""What a bookie may have lost and has not got back yet: kept in `limbo.json`, see `docs/formats/bookie-directory.md`.

In limbo nothing that is not found is denied, and no ordinary add is taken: fences may be lost, too. It ends for the bookie
as a whole when each ledger that metadata names it for has been looked at; for a ledger of which something is still
missing it goes on, until that is found or the ledger is deleted.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from magnetar.bookie.errors import DirectoryDamaged, NewerFormat
from magnetar.environment.clock import Clock
from magnetar.environment.crash import crash_point
from magnetar.environment.disk import Disk
from magnetar.environment.logs import get_logger

FILE_NAME: Final = "limbo.json"
_VERSION: Final = 1
_ADVICE = (
    "Bring back the disk; or start with `on_lost_data: limbo`, and the bookie gets what it should hold from its peers,"
    " answering UNKNOWN until it has"
)

log = get_logger("magnetar.bookie.limbo")


@dataclass(frozen=True, slots=True)
class Limbo:
    """What is in doubt: everything, for `reason`, and in any case these ledgers."""

    reason: str | None = None
    since_ms: int = 0
    ledgers: frozenset[int] = frozenset()

    def __bool__(self) -> bool:
        return self.reason is not None or bool(self.ledgers)

    def doubts(self, ledger_id: int) -> bool:
        return self.reason is not None or ledger_id in self.ledgers


class LimboFile:
    """Calls block on the disk."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._path = directory / FILE_NAME

    def read(self) -> Limbo:
        """Raises: NewerFormat. A file that cannot be read means that everything is in doubt."""
        try:
            fields = json.loads(self._disk.read_file(self._path))
            if fields["version"] > _VERSION:
                raise NewerFormat(self._path, fields["version"], _VERSION)
            return Limbo(fields["reason"], int(fields["since_ms"]), frozenset(map(int, fields["ledgers"])))
        except FileNotFoundError:
            return Limbo()
        except (ValueError, KeyError, TypeError) as error:
            return Limbo(f"{self._path} cannot be read: {error}")

    def write(self, limbo: Limbo) -> None:
        """Durable when this returns: before anything is answered in its spirit, or not any more."""
        crash_point("bookie.limbo.before_write")
        if limbo:
            fields = {
                "version": _VERSION,
                "reason": limbo.reason,
                "since_ms": limbo.since_ms,
                "ledgers": sorted(limbo.ledgers),
            }
            self._disk.replace_file(self._path, json.dumps(fields).encode() + b"\n")
        elif self._disk.exists(self._path):
            self._disk.remove(self._path)
            self._disk.sync_directory(self._directory)
        crash_point("bookie.limbo.after_write")


Lost = Callable[[DirectoryDamaged], None]
"""Told of a loss: raises it where the bookie is not to go on without what is lost."""


def refuse(error: DirectoryDamaged) -> None:
    """Without a policy every loss is the end."""
    raise error


class Losses:
    """What a start finds lost. Unless the bookie may go into limbo, the first of it ends the start."""

    def __init__(self, file: LimboFile, clock: Clock, *, may_go_on: bool) -> None:
        self._file = file
        self._clock = clock
        self._may_go_on = may_go_on
        self.any = file.read().reason is not None
        """Whether anything was found lost, now or by an earlier start, and is not known to be here again."""

    def __call__(self, error: DirectoryDamaged) -> None:
        if not self._may_go_on:
            error.args = (f"{error}. {_ADVICE}",)
            raise error
        log.error("bookie.data_lost", reason=str(error))
        self.any = True
        known = self._file.read()
        if known.reason is not None and str(error) in known.reason:
            return
        # At once: what is made good or passed over from here on would not be found lost by the next start.
        reason = str(error) if known.reason is None else f"{known.reason}; {error}"
        self._file.write(Limbo(reason, self._clock.time_ms(), known.ledgers))
