"""When the write cache is flushed and the journal's mark moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

from magnetar.bookie.index import IndexUnusable
from magnetar.bookie.journal import Journal
from magnetar.bookie.ledger_table import LedgerTable
from magnetar.bookie.mark import Mark
from magnetar.bookie.segments import Segments
from magnetar.bookie.storage import Storage
from magnetar.bookie.write_cache import CacheHalf, WriteCache
from magnetar.environment.errors import DiskFailed
from magnetar.environment.logs import get_logger

_RETRY_S = 2.0

log = get_logger("magnetar.bookie.storage")


@dataclass(frozen=True, slots=True)
class _Work:
    """All that a checkpoint covers, taken in one step on the loop.

    The mark is the journal's durable end at that moment. Whatever lies before it was put into cache and table before it
    was queued for the journal, so it is in `half`, in `changes`, or in storage already.
    """

    half: CacheHalf
    changes: list[bytes]
    mark: Mark
    table_snapshot: list[bytes] | None


class Checkpointer:
    """Runs one checkpoint at a time, in the storage thread. Belongs to the loop."""

    def __init__(
        self,
        cache: WriteCache,
        table: LedgerTable,
        journal: Journal,
        segments: Segments,
        storage: Storage,
        executor: Executor,
        *,
        interval_s: float,
        free_bytes: Callable[[], int],
        on_ended: Callable[[], None],
        on_index_unusable: Callable[[], None],
        on_failure: Callable[[BaseException], object],
    ) -> None:
        self._cache = cache
        self._table = table
        self._journal = journal
        self._segments = segments
        self._storage = storage
        self._executor = executor
        self._interval_s = interval_s
        self._free_bytes = free_bytes
        self._on_ended = on_ended
        self._on_index_unusable = on_index_unusable
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._running: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._mark = storage.checkpoint_state.mark
        self.failing: str | None = None
        """Why the last attempt failed; it is tried again until it succeeds."""
        self.free_bytes: int | None = None
        """Free space at the end of the last one."""
        self._begun = 0
        self.completed = 0

    def schedule(self) -> None:
        """Something changed: a checkpoint within the interval. Without changes nothing ever wakes up."""
        if self._timer is None:
            self._timer = self._loop.call_later(self._interval_s, self._on_timer)

    def begin(self) -> bool:
        """Start a checkpoint unless one is running; the write cache's active half is empty afterwards."""
        if self._running is not None:
            return False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        snapshot = self._table.snapshot() if self._storage.table_wants_rewrite else None
        work = _Work(self._cache.swap(), self._table.take_changes(), self._journal.durable, snapshot)
        self._running = self._loop.create_future()
        self._begun += 1
        self._submit(work)
        return True

    async def run(self) -> None:
        """A checkpoint that covers everything done before this call."""
        needed = self._begun + 1  # One that is running began before this call.
        while self.completed < needed:
            self.begin()
            assert self._running is not None
            await asyncio.shield(self._running)

    def stop(self) -> None:
        """No timer fires after this."""
        for timer in (self._timer, self._retry):
            if timer is not None:
                timer.cancel()

    @property
    def is_needed(self) -> bool:
        """Whether anything has happened since the last checkpoint."""
        return bool(self._cache.bytes or self._table.has_changes or self._journal.durable > self._mark)

    def _on_timer(self) -> None:
        self._timer = None
        if not self.begin():
            self.schedule()

    def _submit(self, work: _Work) -> None:
        self._retry = None
        future = self._loop.run_in_executor(self._executor, self._write, work)
        future.add_done_callback(lambda done: self._ended(work, done))

    def _write(self, work: _Work) -> int:
        self._storage.checkpoint(work.half, work.changes, work.mark, work.table_snapshot)
        self._segments.release(self._storage.checkpoint_state.mark.segment)
        return self._free_bytes()

    def _ended(self, work: _Work, done: asyncio.Future[int]) -> None:
        error = done.exception()
        if isinstance(error, DiskFailed):
            self._on_failure(error)
            return
        if error is not None:
            self.failing = str(error)
            log.error("checkpoint.failed", reason=str(error), again_in_s=_RETRY_S)
            if isinstance(error, IndexUnusable):
                self._on_index_unusable()
            self._retry = self._loop.call_later(_RETRY_S, self._submit, work)
            self._on_ended()
            return
        self.failing = None
        self.free_bytes = done.result()
        self.completed += 1
        self._mark = work.mark
        self._cache.flushed()
        running, self._running = self._running, None
        if running is not None:
            running.set_result(None)
        self._on_ended()
