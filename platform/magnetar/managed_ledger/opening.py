"""Taking over a log: from its record in metadata to a `ManagedLedger` that may be written.

The order matters. The last ledger is recovered, which fences the previous owner's appends; the new ledger is
put in the record, by which he would find himself deposed; each cursor's ledger is recovered and its record
written, so that he cannot move the cursors either.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from magnetar.environment.clock import Clock
from magnetar.environment.logs import get_logger
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerError, NoSuchLedger
from magnetar.ledger.owned_tasks import OwnedTasks
from magnetar.ledger.reader import LedgerReader
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.deletion import LogRemover
from magnetar.managed_ledger.entry import Entry, stored_entry
from magnetar.managed_ledger.entry_cache import EntryCache
from magnetar.managed_ledger.errors import (
    EntryUnreadable,
    ManagedLedgerFenced,
    NoSuchManagedLedger,
    StorageUnavailable,
)
from magnetar.managed_ledger.ledger_list import LedgerList
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.position import Position
from magnetar.managed_ledger.reads import SharedReads
from magnetar.managed_ledger.record_keeper import RecordKeeper
from magnetar.managed_ledger.records import ListedLedger, LogRecord, decode_name, log_path
from magnetar.metadata.store import MetadataStore
from magnetar.protocol.errors import ProtocolError

log = get_logger("magnetar.managed_ledger")

_CURSORS_AT_ONCE = 32
_TAKE_OVER_TRIES = 5
"""The owner before us may just be rolling to a new ledger when we read the record: then that is recovered, too."""


class _Outrun(Exception):
    """The record changed between reading it and putting our name to it."""

    def __init__(self, fenced: ManagedLedgerFenced) -> None:
        super().__init__(str(fenced))
        self.fenced = fenced


@dataclass(frozen=True, slots=True)
class Opener:
    """What logs are opened with."""

    metadata: MetadataStore
    client: LedgerClient
    clock: Clock
    dice: random.Random
    tasks: OwnedTasks
    cache: EntryCache
    remover: LogRemover
    rolls: asyncio.Semaphore
    """How many logs may be having their next ledger made at a time."""
    shared_reads: SharedReads

    async def open(
        self,
        name: str,
        config: ManagedLedgerConfig,
        *,
        create: bool,
        properties: Mapping[str, str] | None,
    ) -> ManagedLedger:
        """Take over the log `name`.

        Raises:
            NoSuchManagedLedger: there is none, and `create` is false.
            StorageUnavailable: something cannot be read or written now.
            ManagedLedgerFenced: somebody else takes it over too.
            EntryUnreadable, RecordUnreadable
        """
        for left in reversed(range(_TAKE_OVER_TRIES)):
            record, version = await self.remover.read_record(name)
            try:
                if record is not None and record.deleted:
                    await self._finish_deletion(name, record, version, gone=not create)
                    record = None
                if record is None:
                    if not create:
                        raise NoSuchManagedLedger(name)
                    record = LogRecord(
                        properties=dict(properties or {}),
                        created_ms=self.clock.time_ms(),
                        incarnation=f"{self.dice.getrandbits(64):016x}",
                    )
                return await self._take_over(name, config, record, version)
            except _Outrun as outrun:
                if not left:
                    raise outrun.fenced from outrun
                log.info("log.outrun", log=name, tries_left=left)
            except LedgerError as error:
                raise StorageUnavailable(name, str(error)) from error
        raise AssertionError("the last try returns or raises")

    async def _finish_deletion(self, name: str, record: LogRecord, version: int, *, gone: bool) -> None:
        """Finish what was cut short. The record itself is kept for the log that is made in its place."""
        try:
            await self.remover.empty(name, record)
            if gone:
                await self.remover.owned(log_path(name), version).delete()
        except ManagedLedgerFenced as fenced:
            raise _Outrun(fenced) from fenced

    async def _take_over(
        self, name: str, config: ManagedLedgerConfig, record: LogRecord, version: int
    ) -> ManagedLedger:
        record, last_reader = await self._with_last_recovered(record)
        ledgers = LedgerList()
        for each in record.ledgers:
            ledgers.add(each.ledger_id, each.entries, each.size, each.closed_ms)
        next_index, last_timestamp_ms = record.next_index, 0
        last = await self._last_entry(name, ledgers, last_reader)
        if last is not None:
            next_index, last_timestamp_ms = max(next_index, last.index + 1), last.broker_timestamp
        opened = ManagedLedger(
            name,
            config,
            metadata=self.metadata,
            client=self.client,
            clock=self.clock,
            dice=self.dice,
            tasks=self.tasks,
            cache=self.cache.tail(),
            rolls=self.rolls,
            shared_reads=self.shared_reads,
            ledgers=ledgers,
            keeper=RecordKeeper(
                name,
                record,
                self.remover.owned(log_path(name), version, config.storage_retry_s),
                client=self.client,
                chapters=self.remover.chapters,
                clock=self.clock,
                tasks=self.tasks,
            ),
            next_index=next_index,
            last_timestamp_ms=last_timestamp_ms,
        )
        try:
            try:
                await opened.take_over()
            except ManagedLedgerFenced as fenced:
                raise _Outrun(fenced) from fenced
            await self._restore_cursors(opened)
            opened.cursors_restored()
        except BaseException:
            opened.abandon()
            raise
        log.info(
            "log.opened",
            log=name,
            ledgers=len(ledgers),
            entries=ledgers.entries,
            cursors=len(opened.cursors),
            next_index=next_index,
        )
        return opened

    async def _with_last_recovered(self, record: LogRecord) -> tuple[LogRecord, LedgerReader | None]:
        """The record with its last ledger closed and counted, and empty ones left out."""
        kept = [each for each in record.ledgers if each.closed_ms and each.entries]
        doomed = [each.ledger_id for each in record.ledgers if each.closed_ms and not each.entries]
        reader: LedgerReader | None = None
        for each in record.ledgers:
            if each.closed_ms:
                continue
            try:
                reader = await self.client.open(each.ledger_id, recover=True)
            except NoSuchLedger:
                log.warning("ledger.missing", ledger_id=each.ledger_id)
                continue
            if reader.last_confirmed < 0:
                doomed.append(each.ledger_id)
                reader = None
                continue
            kept.append(
                ListedLedger(each.ledger_id, reader.last_confirmed + 1, reader.length, self.clock.time_ms())
            )
        return replace(record, ledgers=tuple(kept)).with_doomed(*doomed), reader

    async def _last_entry(self, name: str, ledgers: LedgerList, reader: LedgerReader | None) -> Entry | None:
        if not ledgers.entries:
            return None
        ledger_id, entry_id = ledgers.last_position
        if reader is None or reader.ledger_id != ledger_id:
            try:
                reader = await self.client.open(ledger_id, recover=True)
            except NoSuchLedger as error:
                raise EntryUnreadable(name, str(error)) from error
        found = await reader.read(entry_id, entry_id)
        try:
            return stored_entry(Position(ledger_id, entry_id), found[0].payload)
        except ProtocolError as error:
            raise EntryUnreadable(name, f"entry {ledger_id}:{entry_id}: {error}") from error

    async def _restore_cursors(self, opened: ManagedLedger) -> None:
        turns = asyncio.Semaphore(_CURSORS_AT_ONCE)
        failed: list[Exception] = []

        async def restore(part: str) -> None:
            async with turns:
                if failed:
                    return
                try:
                    await opened.cursor_set.restore(decode_name(part))
                except Exception as error:
                    failed.append(error)

        names = await self.remover.children(opened.name, log_path(opened.name))
        # All are waited for, also when one has failed: none may write behind the back of who opens the log next.
        await asyncio.gather(*map(restore, names))
        if failed:
            raise failed[0]
