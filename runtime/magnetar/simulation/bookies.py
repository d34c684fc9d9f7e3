"""Bookies in memory. As `BookieConnection`s they drop, delay, reorder, fail and crash, as a seed has it.

What a bookie has taken is readable at once and durable a little later, when it is answered; a crash loses what
was not durable. So it is with the real one (entries are served from the write cache before the fsync).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from magnetar.bookie.entry_ranges import ranges_of
from magnetar.protocol.bookie import (
    LAST_ENTRY,
    AddDone,
    AddFlags,
    BookieAddress,
    BookieInfo,
    BookieStatus,
    EntryList,
    EntryRead,
    LacRead,
)
from magnetar.protocol.buffers import Buffer
from magnetar.protocol.ledger_entry import ENTRY_HEADER

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BookieFaults:
    """How likely each thing is to go wrong for one message. All 0: a quick and faultless network."""

    drop: float = 0.0
    """A request or an answer is lost: the client sees TIMEOUT."""
    linger: float = 0.0
    """A message arrives much later, perhaps long after its sender has given up on it."""
    fail: float = 0.0
    """A bookie answers with an error, having done it or not."""
    corrupt: float = 0.0
    """An entry read has a flipped bit."""
    delay_s: float = 0.0
    """Ordinary delays are up to this long."""
    linger_s: float = 3.0
    timeout_s: float = 1.0


NO_FAULTS = BookieFaults()


class StoredLedger:
    """What one bookie holds of one ledger."""

    __slots__ = ("durable", "entries", "explicit_lac", "fence_durable", "fenced", "piggyback_lac")

    def __init__(self) -> None:
        self.entries: dict[int, bytes] = {}
        self.durable: set[int] = set()
        self.fenced = False
        self.fence_durable = False
        self.explicit_lac = -1
        self.piggyback_lac = -1

    def lose_what_is_not_durable(self) -> None:
        for entry_id in [each for each in self.entries if each not in self.durable]:
            del self.entries[entry_id]
        self.fenced = self.fence_durable
        lacs = [ENTRY_HEADER.unpack_from(stored)[2] for stored in self.entries.values()]
        self.piggyback_lac = max(lacs, default=-1)


class MemoryBookie:
    """One bookie's state and its rules, without a network."""

    def __init__(self, bookie_id: str) -> None:
        self.bookie_id = bookie_id
        self.ledgers: dict[int, StoredLedger] = {}
        self.up = True
        self.read_only = False
        self.starts = 0
        """Counts restarts: what was asked of an earlier life is never answered."""

    def crash(self) -> None:
        self.up = False
        self.starts += 1
        for ledger in self.ledgers.values():
            ledger.lose_what_is_not_durable()

    def restart(self) -> None:
        self.up = True

    def holds(self, ledger_id: int, entry_id: int) -> bool:
        """Whether it holds an entry durably."""
        ledger = self.ledgers.get(ledger_id)
        return ledger is not None and entry_id in ledger.durable

    def ledger(self, ledger_id: int) -> StoredLedger:
        return self.ledgers.setdefault(ledger_id, StoredLedger())

    def add(self, ledger_id: int, entry_id: int, stored: bytes, flags: AddFlags) -> BookieStatus:
        """Take an entry. To be made durable by `sync_entry`."""
        ledger = self.ledger(ledger_id)
        if not flags & AddFlags.RECOVERY:
            if ledger.fenced:
                return BookieStatus.FENCED
            if self.read_only:
                return BookieStatus.READ_ONLY
        ledger.entries[entry_id] = stored
        ledger.piggyback_lac = max(ledger.piggyback_lac, ENTRY_HEADER.unpack_from(stored)[2])
        return BookieStatus.OK

    def sync_entry(self, ledger_id: int, entry_id: int) -> None:
        self.ledger(ledger_id).durable.add(entry_id)

    def fence(self, ledger_id: int) -> None:
        """Fence a ledger, known or not. To be made durable by `sync_fence`."""
        self.ledger(ledger_id).fenced = True

    def sync_fence(self, ledger_id: int) -> None:
        self.ledger(ledger_id).fence_durable = True

    def read(self, ledger_id: int, entry_id: int) -> EntryRead:
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            return EntryRead(BookieStatus.NO_SUCH_LEDGER)
        if entry_id == LAST_ENTRY:
            entry_id = max(ledger.entries, default=-1)
        stored = ledger.entries.get(entry_id)
        if stored is None:
            return EntryRead(BookieStatus.NO_SUCH_ENTRY)
        return EntryRead(BookieStatus.OK, stored, self.lac(ledger))

    def read_run(
        self, ledger_id: int, first: int, count: int, max_bytes: int
    ) -> tuple[BookieStatus, list[bytes]]:
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            return BookieStatus.NO_SUCH_LEDGER, []
        run: list[bytes] = []
        size = 0
        for entry_id in range(first, first + count):
            stored = ledger.entries.get(entry_id)
            if stored is None:
                break
            size += len(stored)
            if run and size > max_bytes:
                break
            run.append(stored)
        return (BookieStatus.OK, run) if run else (BookieStatus.NO_SUCH_ENTRY, [])

    def read_lac(self, ledger_id: int) -> LacRead:
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            return LacRead(BookieStatus.NO_SUCH_LEDGER)
        last = max(ledger.entries, default=-1)
        return LacRead(BookieStatus.OK, self.lac(ledger), last, ledger.entries.get(last, b""))

    def list_entries(self, ledger_id: int) -> EntryList:
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            return EntryList(BookieStatus.NO_SUCH_LEDGER)
        return EntryList(BookieStatus.OK, tuple(ranges_of(sorted(ledger.entries))))

    @staticmethod
    def lac(ledger: StoredLedger) -> int:
        return max(ledger.explicit_lac, ledger.piggyback_lac)


Observer = Callable[[str, str, int, int, float], None]
"""Told what a client asks: (what, bookie, ledger, entry, now)."""


class FaultyConnection:
    """A client's way to one bookie. Everything that can go wrong on a way is drawn from `dice`."""

    def __init__(
        self,
        bookie: MemoryBookie,
        dice: random.Random,
        faults: BookieFaults,
        observer: Observer | None = None,
    ) -> None:
        self.bookie_id = bookie.bookie_id
        self.cut = False
        """No message passes, in either direction."""
        self.lose_next = 0
        """So many of the next requests are lost."""
        self._bookie = bookie
        self._dice = dice
        self._faults = faults
        self._observer = observer
        self._loop = asyncio.get_running_loop()

    def add_entry(
        self,
        ledger_id: int,
        entry_id: int,
        parts: Sequence[Buffer],
        flags: AddFlags,
        master_key: bytes,
        done: AddDone,
    ) -> None:
        self._observe("recovery_add" if flags & AddFlags.RECOVERY else "add", ledger_id, entry_id)
        stored = b"".join(parts)
        bookie = self._bookie

        def act() -> BookieStatus:
            return bookie.add(ledger_id, entry_id, stored, flags)

        self._exchange(
            act,
            lambda status: bookie.sync_entry(ledger_id, entry_id) if status is BookieStatus.OK else None,
            lambda status: status,
            done,
        )

    async def read_entry(
        self, ledger_id: int, entry_id: int, *, fence: bool = False, master_key: bytes = b""
    ) -> EntryRead:
        self._observe("fenced_read" if fence else "read", ledger_id, entry_id)
        bookie = self._bookie

        def act() -> EntryRead:
            if fence:
                bookie.fence(ledger_id)
            return bookie.read(ledger_id, entry_id)

        answer: asyncio.Future[EntryRead] = self._loop.create_future()
        self._exchange(act, self._fence_sync(ledger_id, fence), EntryRead, answer.set_result)
        return self._perhaps_corrupt(await answer)

    async def read_entries(
        self, ledger_id: int, first: int, count: int, max_bytes: int, *, background: bool = False
    ) -> tuple[BookieStatus, list[bytes]]:
        self._observe("read_run", ledger_id, first)
        bookie = self._bookie
        answer: asyncio.Future[tuple[BookieStatus, list[bytes]]] = self._loop.create_future()
        self._exchange(
            lambda: bookie.read_run(ledger_id, first, count, max_bytes),
            lambda result: None,
            lambda status: (status, []),
            answer.set_result,
        )
        return await answer

    async def read_lac(self, ledger_id: int, *, fence: bool = False, master_key: bytes = b"") -> LacRead:
        self._observe("fence" if fence else "read_lac", ledger_id, -1)
        bookie = self._bookie

        def act() -> LacRead:
            if fence:
                bookie.fence(ledger_id)
            return bookie.read_lac(ledger_id)

        answer: asyncio.Future[LacRead] = self._loop.create_future()
        self._exchange(act, self._fence_sync(ledger_id, fence), LacRead, answer.set_result)
        return await answer

    async def write_lac(self, ledger_id: int, lac: int, master_key: bytes = b"") -> BookieStatus:
        ledger = self._bookie.ledger(ledger_id)
        ledger.explicit_lac = max(ledger.explicit_lac, lac)
        return BookieStatus.OK

    async def list_entries(self, ledger_id: int) -> EntryList:
        self._observe("list", ledger_id, -1)
        answer: asyncio.Future[EntryList] = self._loop.create_future()
        self._exchange(
            lambda: self._bookie.list_entries(ledger_id),
            lambda result: None,
            EntryList,
            answer.set_result,
        )
        return await answer

    async def wait_lac(self, ledger_id: int, above: int, timeout_s: float) -> LacRead:
        """Asks again and again: what is told from outside, one that is woken tells the same."""
        end = self._loop.time() + timeout_s
        while True:
            answer = await self.read_lac(ledger_id)
            ledger = self._bookie.ledgers.get(ledger_id)
            over = answer.lac > above or self._loop.time() >= end or (ledger is not None and ledger.fenced)
            if over or answer.status.is_unknown:
                return LacRead(answer.status, answer.lac)
            await asyncio.sleep(min(0.1, timeout_s))

    async def info(self) -> BookieInfo:
        return BookieInfo(1 << 40, 1 << 41, self._bookie.read_only)

    async def close(self) -> None:
        """Nothing is held."""

    def delay_more(self, delay_s: float) -> None:
        """From now on messages take up to so long."""
        self._faults = replace(self._faults, delay_s=delay_s)

    # The way there and back.

    def _exchange(
        self,
        act: Callable[[], T],
        sync: Callable[[T], None],
        failed: Callable[[BookieStatus], T],
        done: Callable[[T], None],
    ) -> None:
        """Have `act` done at the bookie, made durable by `sync`, and its result, or a failure, told to `done`."""
        dice, faults, loop, bookie = self._dice, self._faults, self._loop, self._bookie
        told = False

        def tell(result: T) -> None:
            nonlocal told
            if not told:
                told = True
                timer.cancel()
                done(result)

        def arrive() -> None:
            if self.cut:
                return
            if not bookie.up:
                loop.call_later(self._delay(), tell, failed(BookieStatus.UNREACHABLE))
                return
            if faults.fail and dice.random() < faults.fail:
                if dice.random() < 0.5:
                    sync(act())
                status = dice.choice(
                    (BookieStatus.IO_ERROR, BookieStatus.UNKNOWN, BookieStatus.TOO_MANY_REQUESTS)
                )
                loop.call_later(self._delay(), tell, failed(status))
                return
            result, life = act(), bookie.starts
            loop.call_later(self._delay(), made_durable, result, life)

        def made_durable(result: T, life: int) -> None:
            if bookie.starts != life:
                return
            sync(result)
            if not self.cut and not (faults.drop and dice.random() < faults.drop):
                loop.call_later(self._delay(), tell, result)

        timer = loop.call_later(faults.timeout_s, lambda: tell(failed(BookieStatus.TIMEOUT)))
        if self.lose_next:
            self.lose_next -= 1
        elif not (faults.drop and dice.random() < faults.drop):
            delay_s = self._delay()
            if faults.linger and dice.random() < faults.linger:
                delay_s += dice.random() * faults.linger_s
            loop.call_later(delay_s, arrive)

    def _delay(self) -> float:
        return self._dice.random() * self._faults.delay_s if self._faults.delay_s else 0.0

    def _fence_sync(self, ledger_id: int, fence: bool) -> Callable[[object], None]:
        return lambda result: self._bookie.sync_fence(ledger_id) if fence else None

    def _perhaps_corrupt(self, answer: EntryRead) -> EntryRead:
        if answer.entry and self._faults.corrupt and self._dice.random() < self._faults.corrupt:
            flipped = bytearray(answer.entry)
            flipped[self._dice.randrange(len(flipped))] ^= 1 << self._dice.randrange(8)
            return EntryRead(answer.status, bytes(flipped), answer.lac)
        return answer

    def _observe(self, what: str, ledger_id: int, entry_id: int) -> None:
        if self._observer is not None:
            self._observer(what, self.bookie_id, ledger_id, entry_id, self._loop.time())


class MemoryBookies:
    """A `BookieProvider` over bookies in memory: one client's view of them."""

    def __init__(
        self,
        bookies: Mapping[str, MemoryBookie],
        dice: random.Random,
        faults: BookieFaults | Callable[[], BookieFaults] = NO_FAULTS,
        observer: Observer | None = None,
    ) -> None:
        """`faults` may be drawn anew for the way to each bookie: some ways are worse than others."""
        self._bookies = bookies
        self._dice = dice
        self._faults = faults
        self._observer = observer
        self._connections: dict[str, FaultyConnection] = {}

    async def writable(self) -> Mapping[str, BookieAddress]:
        """The bookies that are up and take writes: a registration ends some time after its bookie."""
        return {
            bookie: address for bookie, address in (await self.readable()).items() if not address.read_only
        }

    async def readable(self) -> Mapping[str, BookieAddress]:
        return {
            bookie_id: BookieAddress("127.0.0.1:0", str(bookie.starts), bookie.read_only, domain=bookie_id)
            for bookie_id, bookie in self._bookies.items()
            if bookie.up
        }

    async def known(self) -> set[str]:
        return set(self._bookies)

    def connection(self, bookie_id: str) -> FaultyConnection:
        connection = self._connections.get(bookie_id)
        if connection is None:
            bookie = self._bookies[bookie_id]
            faults = self._faults() if callable(self._faults) else self._faults
            connection = FaultyConnection(bookie, self._dice, faults, self._observer)
            self._connections[bookie_id] = connection
        return connection

    def reset(self, bookie_id: str) -> None:
        """What is under way here is bounded by its time-out."""

    async def close(self) -> None:
        """Nothing is held."""
