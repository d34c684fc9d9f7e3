"""A log's record in metadata, the one way to change it, and the ledgers that a change leaves behind.

A ledger is deleted only after a stored record has said that it is doomed, and the record names it until it is
gone: a crash in between leaves a note, not an orphan.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from magnetar.environment.logs import get_logger
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.owned_tasks import OwnedTasks
from magnetar.managed_ledger.owned_record import OwnedRecord
from magnetar.managed_ledger.records import LogRecord, encode_log

log = get_logger("magnetar.managed_ledger")


class RecordKeeper:
    def __init__(
        self, record: LogRecord, owned: OwnedRecord, client: LedgerClient, tasks: OwnedTasks
    ) -> None:
        self.record = record
        """As it was stored last."""
        self._owned = owned
        self._client = client
        self._tasks = tasks
        self._lock = asyncio.Lock()
        self._to_doom: list[int] = []
        self._gone: list[int] = []
        self._deleting = False

    async def change(self, change: Callable[[LogRecord], LogRecord]) -> None:
        """Store what `change` makes of the record, and only then take it for true.

        Raises:
            ManagedLedgerFenced, StorageUnavailable
        """
        async with self._lock:
            to_doom, gone = list(self._to_doom), list(self._gone)
            record = change(self.record).without_ledgers(to_doom).with_doomed(*to_doom).without_doomed(gone)
            await self._owned.write(lambda revision: encode_log(record, revision))
            self.record = record
            del self._to_doom[: len(to_doom)], self._gone[: len(gone)]
        if record.doomed and not self._deleting:
            self._tasks.spawn(self.delete_doomed())

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
        self._deleting = True
        try:
            for ledger_id in self.record.doomed:
                if ledger_id not in self._gone:
                    await self._client.delete(ledger_id)
                    self._gone.append(ledger_id)
        except LedgerError as error:
            log.warning("ledger.not_deleted", reason=str(error))
        finally:
            self._deleting = False
