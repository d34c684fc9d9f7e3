"""A log's record in metadata, the one way to change it, and the ledgers that a change leaves behind.

A ledger is deleted only after a stored record has said that it is doomed, and the record names it until it is
gone: a crash in between leaves a note, not an orphan.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from magnetar.environment.clock import Clock
from magnetar.environment.crash import crash_point
from magnetar.environment.logs import get_logger
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.owned_tasks import OwnedTasks
from magnetar.managed_ledger.chapters import ChapterStore
from magnetar.managed_ledger.creation import LONG_S
from magnetar.managed_ledger.owned_record import OwnedRecord
from magnetar.managed_ledger.records import LogRecord, encode_log

log = get_logger("magnetar.managed_ledger")


class RecordKeeper:
    def __init__(
        self,
        name: str,
        record: LogRecord,
        owned: OwnedRecord,
        *,
        client: LedgerClient,
        chapters: ChapterStore,
        clock: Clock,
        tasks: OwnedTasks,
    ) -> None:
        self._name = name
        self._chapters = chapters
        self._clock = clock
        self.record = record
        """As it was stored last."""
        self._owned = owned
        self._client = client
        self._tasks = tasks
        self._lock = asyncio.Lock()
        self._to_doom: list[int] = []
        self._gone: list[int] = []
        self._deleting = asyncio.Lock()

    async def change(self, change: Callable[[LogRecord], LogRecord]) -> None:
        """Store what `change` makes of the record, and only then take it for true.

        Raises:
            ManagedLedgerFenced, StorageUnavailable
        """
        async with self._lock:
            to_doom, gone = list(self._to_doom), list(self._gone)
            record = change(self.record).without_ledgers(to_doom).with_doomed(*to_doom).without_doomed(gone)
            before, began, began_ms = self.record, self._clock.monotonic(), self._clock.time_ms()
            record = await self._chapters.fitted(self._name, record, self._owned.next_revision)
            await self._owned.write(lambda revision: encode_log(record, revision))
            self.record = record
            del self._to_doom[: len(to_doom)], self._gone[: len(gone)]
            if record.chapters != before.chapters:
                await self._chapters_changed(before, record, began, began_ms)
        if record.doomed and not self._deleting.locked():
            self._tasks.spawn(self.delete_doomed())

    async def _chapters_changed(
        self, before: LogRecord, record: LogRecord, began: float, began_ms: int
    ) -> None:
        new = [each for each in record.chapters if each not in before.chapters]
        if self._clock.monotonic() - began > LONG_S or self._clock.time_ms() - began_ms > LONG_S * 1000:
            # We have slept. The sweeper may have taken for garbage what was not named for so long.
            for chapter in new:
                ledgers = [e for e in record.ledgers if chapter.first <= e.ledger_id <= chapter.last]
                await self._chapters.write(self._name, chapter, ledgers)
        gone = [each for each in before.chapters if each not in record.chapters]
        if gone:
            self._tasks.spawn(self._chapters.delete(self._name, gone))

    async def verify(self) -> None:
        """Make sure that the log is still ours.

        Raises:
            ManagedLedgerFenced, StorageUnavailable
        """
        async with self._lock:
            await self._owned.verify()

    def doom(self, ledger_id: int) -> None:
        """Have a ledger deleted, but not before a record says that it is not part of the log."""
        self._to_doom.append(ledger_id)

    async def delete_doomed(self) -> None:
        """Delete what the stored record has doomed. What fails is tried again after the next change."""
        async with self._deleting:
            try:
                for ledger_id in self.record.doomed:
                    if ledger_id not in self._gone:
                        crash_point("managed_ledger.before_doomed_delete")
                        await self._client.delete(ledger_id)
                        self._gone.append(ledger_id)
            except LedgerError as error:
                log.warning("ledger.not_deleted", reason=str(error))

    @property
    def doomed_left(self) -> int:
        """How many doomed ledgers are still there."""
        return len(self.record.doomed) - len(self._gone)
