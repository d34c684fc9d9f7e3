"""Telling autorecovery, in the metadata store, of ledgers that have fewer copies than they should.

A mark must not be lost because the store is away for a moment, and nobody who appends may wait for it: marks
queue up here, each ledger and bookie once, until they are stored.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection

from magnetar.environment.logs import get_logger
from magnetar.ledger.errors import MetadataCorrupt, MetadataUnavailable
from magnetar.ledger.owned_tasks import OwnedTasks
from magnetar.ledger.underreplicated import UnderreplicatedLedgers

log = get_logger("magnetar.ledger")

_PAUSE_S = 0.2
_PAUSE_MAX_S = 10.0
_QUEUE_MAX = 100_000
"""Ledgers. More are not waited for: the auditor finds by itself what a lost bookie held."""


class ReplicaMarks:
    """The marks one client has to make."""

    def __init__(self, ledgers: UnderreplicatedLedgers, tasks: OwnedTasks, dice: random.Random) -> None:
        self._ledgers = ledgers
        self._tasks = tasks
        self._dice = dice
        self._queue: dict[int, set[str]] = {}
        self._marking: tuple[int, set[str]] = (-1, set())
        """What was taken from the queue and is not stored yet."""
        self._working = False
        self._closing = False
        self.marked = 0
        """Marks made, ever."""
        self.dropped = 0
        """Marks not made because too many waited, or because the client was closed first."""

    @property
    def waiting(self) -> bool:
        """Whether some are not made yet."""
        return self._working

    def note(self, ledger_id: int, bookie: str) -> None:
        """A bookie may lack entries of a ledger that its metadata say it has."""
        waiting = self._queue.get(ledger_id)
        if waiting is not None:
            waiting.add(bookie)
            return
        if len(self._queue) >= _QUEUE_MAX or self._closing:
            self.dropped += 1
            return
        self._queue[ledger_id] = {bookie}
        if not self._working:
            self._working = True
            self._tasks.spawn(self._work())

    async def store(self, ledger_id: int, bookies: Collection[str]) -> None:
        """Mark now, durably, with what still waits for that ledger: nothing of it is forgotten should this process die.
        Workers are told by `note`.

        Raises:
            MetadataUnavailable
        """
        marking, missing = self._marking
        wanted = {*bookies, *self._queue.get(ledger_id, ()), *(missing if marking == ledger_id else ())}
        if not wanted:
            return
        try:
            await self._ledgers.mark(ledger_id, sorted(wanted), tell=False)
        except MetadataCorrupt as error:
            log.error("ledger.mark_unreadable", ledger_id=ledger_id, reason=str(error))

    def close(self) -> None:
        """Try what waits once more, and wait for nothing after that."""
        self._closing = True

    async def _work(self) -> None:
        pause_s = _PAUSE_S
        try:
            while self._queue:
                try:
                    await self._mark_all()
                    pause_s = _PAUSE_S
                except MetadataUnavailable as error:
                    log.warning("ledgers.not_marked", ledgers=len(self._queue), reason=str(error))
                    if self._closing:
                        self.dropped += len(self._queue)
                        return
                    await asyncio.sleep(pause_s * (0.5 + self._dice.random()))
                    pause_s = min(2 * pause_s, _PAUSE_MAX_S)
        finally:
            self._working = False

    async def _mark_all(self) -> None:
        while self._queue:
            ledger_id = next(iter(self._queue))
            missing = self._queue.pop(ledger_id)  # What is noted from here on is marked once more.
            self._marking = ledger_id, missing
            try:
                await self._ledgers.mark(ledger_id, sorted(missing), tell=False)
            except MetadataCorrupt as error:
                log.error("ledger.mark_unreadable", ledger_id=ledger_id, reason=str(error))
                continue
            except MetadataUnavailable:
                self._queue.setdefault(ledger_id, set()).update(missing)
                raise
            finally:
                self._marking = -1, set()
            self.marked += 1
            log.warning("ledger.underreplicated", ledger_id=ledger_id, missing=",".join(sorted(missing)))
        await self._ledgers.tell()
