"""Carrying out a copy plan: read from any good replica, verified, and write to the targets, durably."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from magnetar.autorecovery.copy_plan import CopyPlan, CopyRun
from magnetar.autorecovery.errors import CopyFailed, EntryUnreadable
from magnetar.autorecovery.settings import AutorecoverySettings
from magnetar.autorecovery.throttle import Throttle
from magnetar.environment.crash import crash_point
from magnetar.environment.logs import get_logger
from magnetar.ledger.surroundings import Surroundings
from magnetar.protocol.bookie import AddFlags, BookieStatus
from magnetar.protocol.ledger_entry import EntryCorrupt, decode_entry

log = get_logger("magnetar.autorecovery")

# Taken by fenced ledgers and by bookies that are read-only for want of space; behind all other work.
FLAGS = AddFlags.RECOVERY | AddFlags.HIGH_PRIORITY | AddFlags.BACKGROUND
READS_AT_ONCE_MAX = 64
REFUSALS_MAX = 5
REFUSED_PAUSE_S = 0.2
BUSY = (BookieStatus.TOO_MANY_REQUESTS, BookieStatus.TIMEOUT)
"""What a busy bookie answers to those who come behind all others. Adding once more does no harm."""


@dataclass(slots=True)
class CopyCounts:
    """What was copied since the process started: each copy counts."""

    entries: int = 0
    bytes: int = 0


_Item = tuple[int, bytes, tuple[str, ...]]
"""An entry's id, its stored form, and where it is to go."""


class Copier:
    """Copies entries as they are stored, header and all. One chunk is written while the next is read."""

    def __init__(
        self,
        surroundings: Surroundings,
        settings: AutorecoverySettings,
        counts: CopyCounts,
        pause: Callable[[float], Awaitable[None]],
    ) -> None:
        """`pause` waits; it raises where the work is to end."""
        self._surroundings = surroundings
        self._settings = settings
        self._counts = counts
        self._pause = pause
        self._throttle = Throttle(settings.copy_bytes_per_s)
        self._reads_at_once = 4
        self._turn = 0
        self.damaged: dict[int, dict[str, set[int]]] = {}
        """Ledger → bookie → entries that it gave wrong, or could not read, while they were copied from others."""

    async def copy(self, ledger_id: int, plan: CopyPlan) -> None:
        """Returns when every target has everything durably.

        Raises:
            EntryUnreadable: no source gave an entry.
            CopyFailed: a target did not take one.
        """
        crash_point("autorecovery.before_copy")
        chunks = self._chunks(ledger_id, plan)
        ahead = asyncio.ensure_future(_next(chunks))
        try:
            while (chunk := await ahead) is not None:
                ahead = asyncio.ensure_future(_next(chunks))
                size = await self._write(ledger_id, chunk)
                crash_point("autorecovery.chunk_copied")
                await self._pause(self._throttle.take(size, self._surroundings.clock.monotonic()))
        finally:
            ahead.cancel()
            await asyncio.wait([ahead])
            await chunks.aclose()

    # Reading.

    async def _chunks(self, ledger_id: int, plan: CopyPlan) -> AsyncGenerator[list[_Item], None]:
        """What is to be written, in pieces that are in memory at once."""
        striped = plan.extent.fragment.striped
        for batch in plan.batches(self._settings.copy_batch_entries):
            at = 0
            while at < len(batch):
                width = self._reads_at_once if striped else 1
                some = batch[at : at + width]
                at += len(some)
                found = await asyncio.gather(
                    *(self._fetch(ledger_id, run.first, run) for run in some), return_exceptions=True
                )
                items: list[_Item] = []
                for run, stored in zip(some, found, strict=True):
                    if isinstance(stored, BaseException):
                        raise stored
                    items += _items(run, run.first, stored)
                if striped:
                    self._adapt(sum(len(stored) for _, stored, _ in items))
                yield items
                for run in some:  # Where a source gave fewer than were asked for.
                    got = sum(run.first <= entry_id <= run.last for entry_id, _, _ in items)
                    while run.first + got <= run.last:
                        more = await self._fetch(ledger_id, run.first + got, run)
                        yield _items(run, run.first + got, more)
                        got += len(more)

    def _adapt(self, size: int) -> None:
        """Striped entries are read one by one: as many at once as fit into a batch, by the size of the last ones."""
        if size > self._settings.copy_batch_bytes:
            self._reads_at_once = max(1, self._reads_at_once // 2)
        elif size * 2 < self._settings.copy_batch_bytes:
            self._reads_at_once = min(READS_AT_ONCE_MAX, self._reads_at_once * 2)

    async def _fetch(self, ledger_id: int, first: int, run: CopyRun) -> list[bytes]:
        """Entries of a run from `first` on, verified: at least that one."""
        sources, last = run.sources, run.last
        answers: list[str] = []
        lost = bool(sources)
        for turn in range(len(sources)):
            bookie = sources[(self._turn + turn) % len(sources)]
            connection = self._surroundings.bookies.connection(bookie)
            status, stored = await connection.read_entries(
                ledger_id, first, last - first + 1, self._settings.copy_batch_bytes, background=True
            )
            good, reason = self._verified(ledger_id, first, stored)
            if good:
                self._turn += turn  # Stay with the one that answers: its read-ahead serves us.
                return good
            answers.append(f"{bookie}: {reason or status.name}")
            if reason or status is BookieStatus.IO_ERROR:
                self.damaged.setdefault(ledger_id, {}).setdefault(bookie, set()).add(first)
            if not reason and not status.is_negative and status is not BookieStatus.IO_ERROR:
                lost = False
        reason = "; ".join(answers) or "none of its bookies is registered"
        raise EntryUnreadable(ledger_id, first, reason, lost=lost)

    def _verified(self, ledger_id: int, first: int, stored: list[bytes]) -> tuple[list[bytes], str]:
        for at, each in enumerate(stored):
            try:
                decode_entry(each, expect_ledger=ledger_id, expect_entry=first + at)
            except EntryCorrupt as error:
                return stored[:at], str(error)
        return stored, ""

    # Writing.

    async def _write(self, ledger_id: int, items: list[_Item]) -> int:
        """Write to all targets at once; returns how many bytes that were."""
        by_target: dict[str, list[tuple[int, bytes]]] = {}
        for entry_id, stored, targets in items:
            for bookie in targets:
                by_target.setdefault(bookie, []).append((entry_id, stored))
        sizes = await asyncio.gather(
            *(self._write_to(ledger_id, bookie, entries) for bookie, entries in by_target.items()),
            return_exceptions=True,
        )
        total = 0
        for size in sizes:
            if isinstance(size, BaseException):
                raise size
            total += size
        return total

    async def _write_to(self, ledger_id: int, bookie: str, entries: list[tuple[int, bytes]]) -> int:
        todo = entries
        for attempt in range(REFUSALS_MAX):
            statuses = await self._add(ledger_id, bookie, todo)
            failed = [(each, status) for each, status in zip(todo, statuses, strict=True) if status]
            if not failed:
                break
            todo = [each for each, _ in failed]
            worst = next((st for _, st in failed if st not in BUSY), None)
            if worst is not None or attempt == REFUSALS_MAX - 1:
                raise CopyFailed(ledger_id, todo[0][0], bookie, worst or failed[0][1])
            await self._pause(REFUSED_PAUSE_S * 2**attempt)
        size = sum(len(stored) for _, stored in entries)
        self._counts.entries += len(entries)
        self._counts.bytes += size
        return size

    async def _add(self, ledger_id: int, bookie: str, entries: list[tuple[int, bytes]]) -> list[BookieStatus]:
        connection = self._surroundings.bookies.connection(bookie)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        statuses: dict[int, BookieStatus] = {}

        def answered(entry_id: int, status: BookieStatus) -> None:
            statuses[entry_id] = status
            if len(statuses) == len(entries) and not done.done():
                done.set_result(None)

        for entry_id, stored in entries:
            connection.add_entry(
                ledger_id,
                entry_id,
                (stored,),
                FLAGS,
                self._surroundings.master_key,
                partial(answered, entry_id),
            )
        await done
        return [statuses[entry_id] for entry_id, _ in entries]


def _items(run: CopyRun, first: int, stored: list[bytes]) -> list[_Item]:
    return [(first + at, each, run.targets) for at, each in enumerate(stored)]


async def _next(chunks: AsyncIterator[list[_Item]]) -> list[_Item] | None:
    return await anext(chunks, None)
