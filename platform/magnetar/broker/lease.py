"""For how long this broker may act on what it believes to own.

A bundle is ours while the metadata store cannot have given our session's locks away. A process that was
stopped, or cut off, hears of the loss late; its own monotonic clock it can ask at once. So the lease is asked,
synchronously, right before a message is dispatched, an acknowledgement receipted or a look-up answered.

While it has run out, and nobody has said that our locks are gone, everything is merely in doubt: dispatch and
answers wait here until the store answers again. Publishing goes on, since ledgers fence out whoever is deposed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from magnetar.environment.logs import get_logger

if TYPE_CHECKING:
    from magnetar.environment.clock import Clock
    from magnetar.metadata.store import MetadataStore

log = get_logger("magnetar.broker")

_LOOK_AGAIN_S: Final = 0.02
"""How often a lease in doubt is looked at; only while somebody waits for it."""


class Lease:
    """Asked often and cheaply; waited for seldom."""

    __slots__ = ("_clock", "_store", "_timer", "_waiting", "doubts")

    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._waiting: dict[Callable[[], None], None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.doubts = 0
        """How often somebody had to wait for it, those that did so together counted once."""

    @property
    def sure(self) -> bool:
        """Whether nobody else can own now what is ours."""
        return self._store.lease_until > self._clock.monotonic()

    def when_sure(self, callback: Callable[[], None]) -> None:
        """Call `callback` once the lease is sure again: once, however often it is asked for until then."""
        self._waiting[callback] = None
        if self._timer is None:
            self.doubts += 1
            log.warning("lease.in_doubt", session=self._store.session_id)
            self._timer = asyncio.get_running_loop().call_later(_LOOK_AGAIN_S, self._look)

    def _look(self) -> None:
        if not self._waiting:
            self._timer = None
        elif self.sure:
            self._timer = None
            log.info("lease.sure_again", waiting=len(self._waiting), session=self._store.session_id)
            waiting, self._waiting = self._waiting, {}
            for callback in waiting:
                callback()
        else:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_AGAIN_S, self._look)

    async def until_sure(self, timeout_s: float) -> bool:
        """Wait until it is sure, but no longer than `timeout_s`; returns whether it is."""
        if self.sure:
            return True
        sure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def tell() -> None:
            if not sure.done():
                sure.set_result(None)

        self.when_sure(tell)
        try:
            await asyncio.wait((sure,), timeout=timeout_s)
        finally:
            self._waiting.pop(tell, None)
        return self.sure

    def close(self) -> None:
        """Forget who waits."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
