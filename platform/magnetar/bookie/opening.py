"""Opening a data directory: from what is on disk to a bookie's memory, and what of it turns out to be lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from magnetar.bookie.directory import Cookie, Share, open_directory
from magnetar.bookie.journal import Journal
from magnetar.bookie.journal_replay import JournalReplay
from magnetar.bookie.ledger_table import LedgerTable
from magnetar.bookie.limbo import Limbo, LimboFile, Losses
from magnetar.bookie.machine import Lock, Machine
from magnetar.bookie.segments import Segments
from magnetar.bookie.settings import BookieSettings
from magnetar.bookie.startup import replay_journal
from magnetar.bookie.storage import Storage
from magnetar.bookie.write_cache import CacheHalf, WriteCache
from magnetar.environment.clock import Clock
from magnetar.environment.disk import Disk
from magnetar.metrics.sample import Sample, counter, gauge


@dataclass(slots=True)
class Running:
    """What exists between start and stop."""

    lock: Lock
    cookie: Cookie
    storage: Storage
    table: LedgerTable
    cache: WriteCache
    segments: Segments
    journal: Journal
    limbo_file: LimboFile
    limbo: Limbo
    replayed: int
    first_sequence: int
    """The number of the first record that this process will write."""
    free_bytes: int
    total_bytes: int

    def samples(self, labels: Mapping[str, str]) -> Iterator[Sample]:
        journal, storage = self.journal, self.storage
        yield counter("bookie_journal_JOURNAL_SYNC_count", journal.groups, labels)
        yield counter("bookie_journal_JOURNAL_WRITE_BYTES", journal.synced_bytes, labels)
        yield gauge("bookie_journal_JOURNAL_PENDING_BYTES", journal.pending_bytes, labels)
        yield gauge("bookie_write_cache_size", self.cache.bytes, labels)
        yield gauge("bookie_ledgers_count", len(self.table), labels)
        yield counter("bookie_flushed_entries_count", storage.flushed_entries, labels)
        yield counter("bookie_flushed_bytes", storage.flushed_bytes, labels)
        yield gauge("bookie_index_in_doubt", int(storage.doubt is not None), labels)


class _Locks:
    """Of two directories."""

    def __init__(self, *locks: Lock) -> None:
        self._locks = locks

    def release(self) -> None:
        for lock in self._locks:
            lock.release()


def open_bookie(
    settings: BookieSettings,
    *,
    disk: Disk,
    machine: Machine,
    clock: Clock,
    bookie_id: str,
    share: Share | None = None,
    loop: asyncio.AbstractEventLoop,
    on_failure: Callable[[BaseException], object],
) -> Running:
    """Open or make the directory, replay the journal, begin a new segment. Blocks: not for the loop."""
    directory, journal_path = settings.directory, settings.journal
    disk.make_directory(directory)
    lock = machine.lock(directory)
    storage: Storage | None = None
    try:
        elsewhere = journal_path.parent != directory
        if elsewhere:
            disk.make_directory(journal_path.parent)
            lock = _Locks(lock, machine.lock(journal_path.parent))
        limbo_file = LimboFile(disk, directory)
        losses = Losses(limbo_file, clock, may_go_on=settings.on_lost_data == "limbo")
        cookie = open_directory(
            disk,
            directory,
            bookie_id,
            clock,
            journal=journal_path if elsewhere else None,
            share=share,
            dice=machine.dice,
            lost=losses,
        )
        segments = Segments(
            disk,
            journal_path,
            segment_bytes=settings.journal_segment_bytes,
            first_bytes=settings.journal_first_bytes,
            clock=clock,
            salts=machine.dice,
        )
        storage = Storage(
            disk,
            directory,
            instance=cookie.instance_id,
            clock=clock,
            entry_log_bytes=settings.entry_log_bytes,
            read_ahead_bytes=settings.read_ahead_bytes,
            cached_bytes=settings.entry_log_cached_bytes,
            read_cached_bytes=settings.entry_log_read_cached_bytes,
            open_index=machine.open_index,
            remove_index=machine.remove_index,
        )
        table = storage.open(segments, losses, salvage=losses.any)
        cache = WriteCache(settings.write_cache_bytes // 2)
        segments.remove_spares()
        replay = JournalReplay(segments, storage.checkpoint_state.mark, losses)
        replay_journal(replay, table, cache, storage, salvage=lambda: losses.any)
        limbo = limbo_file.read()
        if limbo:
            table.doubt_tails()
        journal = machine.journal(segments, on_failure=on_failure)
        journal.start(loop, replay.last_segment + 1, replay.next_sequence)
        if not replay.records:  # Nothing to keep the old segments for.
            storage.checkpoint(CacheHalf(), table.take_changes(), journal.durable, None)
            segments.release(storage.checkpoint_state.mark.segment)
    except BaseException:
        if storage is not None:
            storage.close(seal=False)
        lock.release()
        raise
    return Running(
        lock=lock,
        cookie=cookie,
        storage=storage,
        table=table,
        cache=cache,
        segments=segments,
        journal=journal,
        limbo_file=limbo_file,
        limbo=limbo,
        replayed=replay.records,
        first_sequence=replay.next_sequence,
        free_bytes=disk.free_bytes(directory),
        total_bytes=disk.total_bytes(directory),
    )
