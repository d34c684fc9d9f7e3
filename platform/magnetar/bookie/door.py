"""Where adds wait while write cache and journal are full: in order, for a bounded time, in bounded memory.

Those that nobody waits for have a door of their own, behind which there is less room.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from magnetar.bookie.journal import Journal
from magnetar.bookie.settings import BookieSettings
from magnetar.bookie.write_cache import Parts, WriteCache
from magnetar.protocol.bookie import AddDone, AddFlags, BookieStatus


class WaitingAdd(NamedTuple):
    ledger_id: int
    entry_id: int
    parts: Parts
    size: int
    flags: AddFlags
    master_key: bytes
    done: AddDone


def tell(added: asyncio.Future[BookieStatus], status: BookieStatus) -> None:
    """As `done` of an add somebody waits for who may have been stopped meanwhile."""
    if not added.done():
        added.set_result(status)


class Door:
    """Belongs to the loop. One timer runs while anything waits, none otherwise."""

    def __init__(
        self,
        *,
        wait_s: float,
        max_bytes: int,
        has_room: Callable[[int], bool],
        admit: Callable[[WaitingAdd], None],
    ) -> None:
        self._wait_s = wait_s
        self._max_bytes = max_bytes
        self._has_room = has_room
        self._admit = admit
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[float, WaitingAdd]] = deque()
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self.refused = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, add: WaitingAdd) -> None:
        """Admit `add` once there is room, or refuse it when its time is over or too much waits already."""
        if self._bytes + add.size > self._max_bytes and self._waiting:
            self.refused += 1
            self._loop.call_soon(add.done, BookieStatus.TOO_MANY_REQUESTS)
            return
        self._waiting.append((self._loop.time() + self._wait_s, add))
        self._bytes += add.size
        if self._timer is None:
            self._timer = self._loop.call_later(self._wait_s, self._expire)

    def let_in(self) -> None:
        """There may be room."""
        while self._waiting and self._has_room(self._waiting[0][1].size):
            self._admit(self._pop())

    def close(self) -> None:
        """Refuse whatever waits: the bookie is stopping."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting:
            self._pop().done(BookieStatus.UNREACHABLE)

    def _pop(self) -> WaitingAdd:
        _, add = self._waiting.popleft()
        self._bytes -= add.size
        return add

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._waiting and self._waiting[0][0] <= now:
            self.refused += 1
            self._pop().done(BookieStatus.TOO_MANY_REQUESTS)
        if self._waiting:
            self._timer = self._loop.call_at(self._waiting[0][0], self._expire)


class Entrance:
    """Both doors, and what room there is behind them. Belongs to the loop."""

    def __init__(
        self,
        settings: BookieSettings,
        cache: WriteCache,
        journal: Journal,
        begin_flush: Callable[[], bool],
        admit: Callable[[WaitingAdd], None],
    ) -> None:
        """`begin_flush` empties the active half of the cache, unless the other is still being flushed."""
        self._cache = cache
        self._journal = journal
        self._begin_flush = begin_flush
        self._pending_max = settings.journal_pending_bytes
        self.front, self.back = (
            Door(
                wait_s=settings.add_wait_s,
                max_bytes=settings.waiting_adds_bytes,
                has_room=has_room,
                admit=admit,
            )
            for has_room in (self.has_room, self.has_spare_room)
        )

    def has_room(self, size: int) -> bool:
        """Whether an entry may come in; a full half of the cache is sent off to be flushed, if the other is free."""
        if self._journal.pending_bytes >= self._pending_max:
            return False
        return self._cache.has_room(size) or (self._begin_flush() and self._cache.has_room(size))

    def has_spare_room(self, size: int) -> bool:
        """Room for an entry that nobody waits for: nobody else waits, and those who come next will not have to."""
        if self.front or self._journal.pending_bytes > self._pending_max // 8:
            return False
        return not self._cache.is_pressed and self.has_room(size)

    def let_in(self) -> None:
        """There may be room."""
        if self.front:
            self.front.let_in()
        if self.back:
            self.back.let_in()

    def close(self) -> None:
        self.front.close()
        self.back.close()
