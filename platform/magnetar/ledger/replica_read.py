"""Reading from replicas: one first, another when it is silent or fails.

Whoever lets a reader wait is asked last for a while. An answer that comes too late does no harm and is not waited
for. Source: section 1.11 of the storage fact sheet (speculative, sticky and reordered reads).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from magnetar.environment.logs import get_logger
from magnetar.ledger.errors import ReadFailed
from magnetar.ledger.surroundings import Surroundings
from magnetar.protocol.bookie import BookieAddress, BookieStatus
from magnetar.protocol.ledger_entry import EntryCorrupt, LedgerEntry, decode_entry

log = get_logger("magnetar.ledger")

_GONE = frozenset({BookieStatus.TIMEOUT, BookieStatus.UNREACHABLE})

_Answer = tuple[str, BookieStatus, list[LedgerEntry]]


async def in_order(replicas: Sequence[str], surroundings: Surroundings) -> list[str]:
    """The replicas in the order in which to ask them: as given, but slow, failing and far ones later."""
    if len(replicas) == 1:
        return list(replicas)
    now = surroundings.clock.monotonic()
    health, here = surroundings.health, surroundings.settings.local_rack.strip("/")
    addresses = await surroundings.bookies.readable() if here else {}

    def worse(bookie: str) -> tuple[bool, int]:
        bad = health.reads_slowly(bookie, now) or health.quarantined(bookie, now)
        return bad, distance(here, addresses.get(bookie)) if here else 0

    return sorted(replicas, key=worse)


def distance(here: str, there: BookieAddress | None) -> int:
    """0 in the same rack, 1 in the same region, 2 elsewhere. Racks are paths, `region/rack`."""
    rack = there.rack.strip("/") if there is not None else ""
    if rack == here:
        return 0
    region = here.rpartition("/")[0]
    return 1 if region and rack.rpartition("/")[0] == region else 2


class ReplicaReads:
    """Reads of one ledger's entries."""

    __slots__ = ("_ledger_id", "_surroundings", "gone")

    def __init__(self, ledger_id: int, surroundings: Surroundings) -> None:
        self._ledger_id = ledger_id
        self._surroundings = surroundings
        self.gone = False
        """Whether a replica could not be reached: perhaps the ledger lies elsewhere by now."""

    async def run(
        self, replicas: Sequence[str], first: int, count: int, max_bytes: int
    ) -> tuple[str, list[LedgerEntry]]:
        """A run of entries from `first` on that one replica holds, and which. Asked in the order given.

        Raises:
            ReadFailed: none gives it.
        """
        order = await in_order(replicas, self._surroundings)
        if len(order) == 1:
            answer = await self._ask(order[0], first, count, max_bytes)
            if answer[2]:
                return answer[0], answer[2]
            raise self._failure(first, [answer])
        return await self._first_of(order, first, count, max_bytes)

    async def each(
        self, wanted: Sequence[tuple[int, Sequence[str]]], max_bytes: int
    ) -> list[list[LedgerEntry] | ReadFailed]:
        """Single entries, all asked for at once, each of its replicas; or what went wrong with it.

        One task for an entry, and one look at the clock for all: only what the first replica does not give in time is
        looked for as `run` does.
        """
        surroundings = self._surroundings
        orders = [await in_order(replicas, surroundings) for _, replicas in wanted]
        asked = [
            surroundings.tasks.start(self._ask(order[0], entry_id, 1, max_bytes))
            for (entry_id, _), order in zip(wanted, orders, strict=True)
        ]
        await asyncio.wait(asked, timeout=surroundings.settings.speculative_read_s or None)
        found: list[list[LedgerEntry] | ReadFailed] = []
        late: list[asyncio.Task[list[LedgerEntry]]] = []
        places: list[int] = []
        for (entry_id, _), order, task in zip(wanted, orders, asked, strict=True):
            entries = task.result()[2] if task.done() else []
            found.append(entries)
            if not entries:
                places.append(len(found) - 1)
                late.append(surroundings.tasks.start(self._late(order, entry_id, max_bytes, task)))
        if late:
            for place, outcome in zip(
                places, await asyncio.gather(*late, return_exceptions=True), strict=True
            ):
                if isinstance(outcome, BaseException) and not isinstance(outcome, ReadFailed):
                    raise outcome
                found[place] = outcome
        return found

    async def _late(
        self, order: list[str], entry_id: int, max_bytes: int, first: asyncio.Task[_Answer]
    ) -> list[LedgerEntry]:
        """An entry that the first of its replicas has not given, or not yet."""
        if not first.done():
            surroundings = self._surroundings
            surroundings.health.read_slowly(order[0], surroundings.clock.monotonic())
            surroundings.counts.speculative_reads += 1
        _, entries = await self._first_of(order[1:], entry_id, 1, max_bytes, asked={first: order[0]})
        return entries

    async def _first_of(
        self,
        order: list[str],
        first: int,
        count: int,
        max_bytes: int,
        asked: dict[asyncio.Task[_Answer], str] | None = None,
    ) -> tuple[str, list[LedgerEntry]]:
        """`asked`: those that were asked before, and let us wait or have answered without the entry."""
        surroundings = self._surroundings
        patience_s = surroundings.settings.speculative_read_s
        asked = {} if asked is None else asked
        answers: list[_Answer] = []

        def ask_next() -> None:
            bookie = order.pop(0)
            asked[surroundings.tasks.start(self._ask(bookie, first, count, max_bytes))] = bookie

        if order:
            ask_next()
        while asked:
            # One that has answered, though not with the entry, shows that nothing is stuck: no guess is needed then.
            guess = bool(order) and not answers and patience_s > 0
            done, _ = await asyncio.wait(
                asked, timeout=patience_s if guess else None, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                now = surroundings.clock.monotonic()
                for bookie in asked.values():
                    surroundings.health.read_slowly(bookie, now)
                surroundings.counts.speculative_reads += 1
                patience_s *= 2
                ask_next()
                continue
            for task in [task for task in asked if task in done]:
                del asked[task]
                answer = task.result()
                if answer[2]:
                    return answer[0], answer[2]
                answers.append(answer)
            if order:
                ask_next()
        raise self._failure(first, answers)

    async def _ask(self, bookie: str, first: int, count: int, max_bytes: int) -> _Answer:
        connection = self._surroundings.bookies.connection(bookie)
        status, run = await connection.read_entries(self._ledger_id, first, count, max_bytes)
        if status in _GONE:
            self.gone = True
            self._surroundings.health.read_slowly(bookie, self._surroundings.clock.monotonic())
        if status is not BookieStatus.OK:
            return bookie, status, []
        entries = self._verified(bookie, first, run)
        return bookie, BookieStatus.OK if entries else BookieStatus.UNKNOWN, entries

    def _verified(self, bookie: str, first: int, run: list[bytes]) -> list[LedgerEntry]:
        entries: list[LedgerEntry] = []
        for entry_id, stored in enumerate(run, first):
            try:
                entries.append(decode_entry(stored, expect_ledger=self._ledger_id, expect_entry=entry_id))
            except EntryCorrupt as error:
                log.warning("replica.corrupt", bookie=bookie, ledger_id=self._ledger_id, reason=str(error))
                break
        return entries

    def _failure(self, first: int, answers: Sequence[_Answer]) -> ReadFailed:
        return ReadFailed(
            self._ledger_id,
            first,
            ", ".join(f"{bookie} answered {status.name}" for bookie, status, _ in answers),
            absent=all(status.is_negative for _, status, _ in answers),
        )


async def asked_in_turn(
    bookies: Sequence[str],
    ask: Callable[[str], Coroutine[Any, Any, int | None]],
    good: Callable[[int], bool],
    surroundings: Surroundings,
    patience_s: float,
) -> int | None:
    """The highest number any of them gives: the first good one, or all there are. None if nobody gives any.

    Another one is asked whenever nothing has come for `patience_s`, or an answer was not good.
    """
    left = list(bookies)
    asked: set[asyncio.Task[int | None]] = set()
    best: int | None = None
    while left or asked:
        if left:
            asked.add(surroundings.tasks.start(ask(left.pop(0))))
        done, asked = await asyncio.wait(
            asked, timeout=patience_s if left else None, return_when=asyncio.FIRST_COMPLETED
        )
        found = [number for task in done if (number := task.result()) is not None]
        best = max(found if best is None else [best, *found], default=None)
        if best is not None and good(best):
            return best
    return best
