"""Finds what deletions that were cut short have left, and what was made and never used. Nothing leaks for ever.

Three kinds of leftovers:

- logs and cursors marked as deleted, that nobody has asked for again;
- ledgers doomed by the record of a log that nobody opens;
- orphans: ledgers of logs that no record names. Their owner died between making them and naming them.

Nothing is touched on the word of one look: a record must be found the same in two sweeps, an orphan must be
old, unnamed in two sweeps, and unnamed when its own log and cursor are read once more just before. It is
fenced before it is deleted: should its maker be asleep, and name it after all, it takes no entry.

One process sweeps: the one whose ephemeral record says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from typing import Any

from magnetar.environment.crash import crash_point
from magnetar.environment.logs import get_logger
from magnetar.ledger.errors import LedgerError, NoSuchLedger
from magnetar.ledger.metadata import LedgerMetadata
from magnetar.managed_ledger.chapters import LISTS_PATH, chapter_path
from magnetar.managed_ledger.deletion import LogRemover
from magnetar.managed_ledger.errors import ManagedLedgerError, RecordUnreadable, StorageUnavailable
from magnetar.managed_ledger.records import (
    LOGS_PATH,
    CursorRecord,
    LogRecord,
    cursor_path,
    decode_cursor,
    decode_log,
    decode_name,
    log_path,
)
from magnetar.metadata.errors import AlreadyExists, BadVersion, MetadataError
from magnetar.metadata.store import MUST_NOT_EXIST

log = get_logger("magnetar.managed_ledger")

SWEEPER_PATH = "/managed-ledger-sweeper"
_ORPHANS_TRUSTED = 10
"""So few may be deleted whatever their share: a small cluster has small numbers."""


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """How leftovers are looked for."""

    interval_s: float = 1800.0
    """Between two sweeps. 0: never."""
    orphan_age_s: float = 3600.0
    """A ledger younger than this may be one that its maker is about to name."""
    records_per_s: float = 500.0
    """How fast records are read at most."""
    orphan_share_max: float = 0.2
    """With a larger share of all ledgers unnamed, none is deleted: rather were records lost, or restored from an old copy,
    than so many owners died between making a ledger and naming it."""


@dataclass(frozen=True, slots=True)
class OrphanLedger:
    """A ledger that no log, and no cursor, names."""

    ledger_id: int
    log: str
    cursor: str
    """ "": it was made for entries."""
    created_ms: int
    reason: str


@dataclass(slots=True)
class SweepReport:
    """What a sweep has come upon, and done."""

    logs: int = 0
    cursors: int = 0
    deletions_finished: int = 0
    ledgers_deleted: int = 0
    orphans: list[OrphanLedger] = field(default_factory=list)
    """Unnamed ledgers old enough, deleted or still to be looked at a second time."""
    pending: list[str] = field(default_factory=list)
    """Logs and cursors (`log/cursor`) whose deletion is under way, or was cut short."""
    unreadable: list[str] = field(default_factory=list)
    """Records that make no sense. While there are any, no orphan is deleted: they might name it."""


class Sweeper:
    """Remembers one sweep for the next. All for one event loop."""

    def __init__(self, remover: LogRemover, settings: SweepSettings) -> None:
        self._remover = remover
        self.settings = settings
        self._seen: dict[str, bytes] = {}
        """Records marked as deleted, or with doomed ledgers, as the last sweep has found them."""
        self._unnamed: set[int] = set()
        """Old ledgers that the last sweep has found unnamed."""
        self._chapters: set[str] = set()
        """Paths of all chapters that records name."""
        self._read = 0

    async def is_our_turn(self) -> bool:
        """Whether this process is the one that sweeps."""
        store = self._remover.metadata
        try:
            found = await store.get(SWEEPER_PATH)
            if found is None:
                await store.put(SWEEPER_PATH, b"{}", expected_version=MUST_NOT_EXIST, ephemeral=True)
                found = await store.get(SWEEPER_PATH)
        except (AlreadyExists, BadVersion):
            return False
        except MetadataError as error:
            raise StorageUnavailable(SWEEPER_PATH, str(error) or type(error).__name__) from error
        return found is not None and found.session == store.session_id

    async def sweep(self, *, delete: bool = True) -> SweepReport:
        """Look at everything once. Without `delete`, only tell.

        Raises:
            StorageUnavailable: nothing was deleted that should not have been; the rest, next time.
        """
        report = SweepReport()
        self._chapters.clear()
        try:
            # In this order: a ledger named after it was listed is found named.
            ledger_ids = await self._remover.client.list()
            named, seen = await self._walk_logs(report, delete=delete)
            await self._walk_chapters("", report, seen, delete=delete)
            unnamed = await self._walk_ledgers(ledger_ids, named, report, delete=delete)
        except (LedgerError, MetadataError) as error:
            raise StorageUnavailable("sweep", str(error) or type(error).__name__) from error
        if delete:
            self._seen, self._unnamed = seen, unnamed
        return report

    # Logs and cursors.

    async def _walk_logs(self, report: SweepReport, *, delete: bool) -> tuple[set[int], dict[str, bytes]]:
        named: set[int] = set()
        seen: dict[str, bytes] = {}
        async for name, value in self._logs(""):
            report.logs += 1
            try:
                record = decode_log(name, value)
                if record.chapters:
                    record = (await self._remover.read_record(name))[0] or record
            except RecordUnreadable as error:
                report.unreadable.append(str(error))
                continue
            self._chapters |= {chapter_path(name, each) for each in record.chapters}
            named.update(record.ledger_ids)
            await self._look_at(name, record, value, report, seen, delete=delete)
            await self._walk_cursors(name, record, named, report, seen, delete=delete)
        return named, seen

    async def _walk_chapters(
        self, folder: str, report: SweepReport, seen: dict[str, bytes], *, delete: bool
    ) -> None:
        """Chapters of lists that no record names: they were made, and never named, or no more."""
        for child in await self._remover.children(folder, f"{LISTS_PATH}{folder}"):
            path = f"{LISTS_PATH}{folder}/{child}"
            found = await self._remover.get(folder, path)
            if found is None or path in self._chapters:
                continue
            if not found.value:
                await self._walk_chapters(f"{folder}/{child}", report, seen, delete=delete)
            elif not delete or path not in self._seen:
                seen[path] = found.value
            elif not report.unreadable:
                await self._remover.chapters.delete_path(path)

    async def _look_at(
        self,
        name: str,
        record: LogRecord,
        value: bytes,
        report: SweepReport,
        seen: dict[str, bytes],
        *,
        delete: bool,
    ) -> None:
        if not record.deleted and not record.doomed:
            return
        if record.deleted:
            report.pending.append(name)
        if not delete or self._seen.get(name) != value:
            seen[name] = value
        elif record.deleted:
            await self._finish(report, name, self._remover.delete(name))
        else:
            # They are out of the log for good, whoever owns it. Its record forgets them when it is written next.
            await self._delete_ledgers(record.doomed, report)
            seen[name] = value

    async def _walk_cursors(
        self,
        name: str,
        record: LogRecord,
        named: set[int],
        report: SweepReport,
        seen: dict[str, bytes],
        *,
        delete: bool,
    ) -> None:
        for part in await self._remover.children(name, log_path(name)):
            cursor = decode_name(part)
            path = cursor_path(name, cursor)
            found = await self._paced_get(name, path)
            if found is None:
                continue
            report.cursors += 1
            try:
                kept = decode_cursor(cursor, found)
            except RecordUnreadable as error:
                report.unreadable.append(str(error))
                continue
            named.update(kept.named_ledgers)
            if record.deleted or not _unfinished(kept, record):
                continue
            if kept.deleted or not kept.belongs_to(record.incarnation):
                report.pending.append(f"{name}/{cursor}")
            if not delete or self._seen.get(path) != found:
                seen[path] = found
            elif kept.deleted or not kept.belongs_to(record.incarnation):
                work = self._remover.delete_cursor(name, cursor, kept.incarnation)
                await self._finish(report, f"{name}/{cursor}", work)
            else:
                await self._delete_ledgers(kept.doomed, report)
                seen[path] = found

    async def _finish(self, report: SweepReport, what: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except ManagedLedgerError as error:
            log.info("deletion.left_to_others", what=what, reason=str(error))
        else:
            report.deletions_finished += 1
            log.info("deletion.finished", what=what)

    async def _delete_ledgers(self, ledger_ids: tuple[int, ...], report: SweepReport) -> None:
        for ledger_id in ledger_ids:
            await self._remover.client.delete(ledger_id)
            report.ledgers_deleted += 1

    async def _logs(self, folder: str) -> AsyncIterator[tuple[str, bytes]]:
        """All logs below `folder`, each with its record as it is stored."""
        path = f"{LOGS_PATH}/{folder}" if folder else LOGS_PATH
        for child in await self._remover.children(folder, path):
            name = f"{folder}/{child}" if folder else child
            value = await self._paced_get(name, log_path(name))
            if value:
                yield name, value
            else:
                async for found in self._logs(name):
                    yield found

    async def _paced_get(self, name: str, path: str) -> bytes | None:
        await self._pace()
        found = await self._remover.get(name, path)
        return None if found is None else found.value

    async def _pace(self) -> None:
        """In bursts, because a timer for each record would cost more than reading it."""
        self._read += 1
        burst = max(1, int(self.settings.records_per_s / 10))
        if self._read % burst == 0:
            await asyncio.sleep(burst / self.settings.records_per_s)

    # Ledgers.

    async def _walk_ledgers(
        self, ledger_ids: list[int], named: set[int], report: SweepReport, *, delete: bool
    ) -> set[int]:
        unnamed: set[int] = set()
        now_ms = self._remover.clock.time_ms()
        delete = delete and not self._too_many(len(ledger_ids))
        for ledger_id in ledger_ids:
            if ledger_id in named:
                continue
            await self._pace()
            try:
                metadata = await self._remover.client.metadata_of(ledger_id)
            except NoSuchLedger:
                continue
            if not _is_ours(metadata) or now_ms - metadata.created_ms < self.settings.orphan_age_s * 1000:
                continue
            reason = await self._why_unnamed(metadata)
            if reason is None:
                continue
            report.orphans.append(_orphan(metadata, reason))
            unnamed.add(ledger_id)
            if delete and ledger_id in self._unnamed and not report.unreadable:
                await self._delete_orphan(metadata, report)
        return unnamed

    def _too_many(self, ledgers: int) -> bool:
        """Whether so many were found last time that it is the records that must be looked after."""
        found = len(self._unnamed)
        if found <= _ORPHANS_TRUSTED or found <= self.settings.orphan_share_max * ledgers:
            return False
        log.error(
            "orphans.too_many",
            orphans=found,
            ledgers=ledgers,
            hint="were topics' records lost or restored from an old copy? None of these ledgers is deleted",
        )
        return True

    async def _delete_orphan(self, metadata: LedgerMetadata, report: SweepReport) -> None:
        ledger_id = metadata.ledger_id
        try:
            await self._remover.client.open(ledger_id, recover=True)
        except NoSuchLedger:
            return
        except LedgerError as error:
            # Not even an empty end can be made of it. It stays, is listed, and is tried again.
            log.warning("orphan.not_fenced", ledger_id=ledger_id, reason=str(error))
            return
        if await self._why_unnamed(metadata) is None:
            return
        crash_point("sweeper.before_orphan_delete")
        await self._remover.client.delete(ledger_id)
        report.ledgers_deleted += 1
        log.info("orphan.deleted", ledger_id=ledger_id, log=_text(metadata, "managed-ledger"))

    async def _why_unnamed(self, metadata: LedgerMetadata) -> str | None:
        """Read once more what should name it. None: something does, or cannot be read."""
        name, cursor = _text(metadata, "managed-ledger"), _text(metadata, "cursor")
        path = cursor_path(name, cursor) if cursor else log_path(name)
        value = await self._paced_get(name, path)
        what = f"cursor {cursor!r} of log {name!r}" if cursor else f"log {name!r}"
        if not value:
            return f"there is no {what}"
        try:
            if cursor:
                ids = decode_cursor(cursor, value).named_ledgers
            else:
                record = (await self._remover.read_record(name))[0] or decode_log(name, value)
                ids = record.ledger_ids
        except RecordUnreadable:
            return None
        return None if metadata.ledger_id in ids else f"the record of {what} does not name it"


def _unfinished(cursor: CursorRecord, record: LogRecord) -> bool:
    return bool(cursor.deleted or cursor.doomed or not cursor.belongs_to(record.incarnation))


def _is_ours(metadata: LedgerMetadata) -> bool:
    return metadata.custom.get("component") == b"managed-ledger" and "managed-ledger" in metadata.custom


def _text(metadata: LedgerMetadata, key: str) -> str:
    return metadata.custom.get(key, b"").decode(errors="replace")


def _orphan(metadata: LedgerMetadata, reason: str) -> OrphanLedger:
    return OrphanLedger(
        metadata.ledger_id,
        _text(metadata, "managed-ledger"),
        _text(metadata, "cursor"),
        metadata.created_ms,
        reason,
    )
