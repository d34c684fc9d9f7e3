"""One leader among several candidates."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from magnetar.environment.clock import Clock, SystemClock
from magnetar.environment.logs import get_logger
from magnetar.metadata.errors import StoreClosed, StoreUnavailable
from magnetar.metadata.locks import LockTaken, ResourceLock
from magnetar.metadata.store import MetadataStore, Notification, SessionState

RETRY_S = 1.0  # While the store does not answer.
LOOK_AGAIN_S = 30.0  # While another leads: in case the news of its end was lost with a connection.

_log = get_logger("magnetar.metadata")


class LeaderElection:
    """Stands for leadership until stopped, and comes back after every defeat.

    `on_change(True)` means: lead, with `epoch`; `on_change(False)`: stop leading now. Both come on the loop, and
    may come late; `leading` is never true while another's can be.
    """

    def __init__(
        self,
        store: MetadataStore,
        path: str,
        candidate: bytes,
        on_change: Callable[[bool], None],
        *,
        clock: Clock | None = None,
    ) -> None:
        """`candidate` is what others read at `path` while this one leads; unique among the candidates."""
        self._store = store
        self._clock = clock if clock is not None else SystemClock()
        self._path = path
        self._candidate = candidate
        self._on_change = on_change
        self._lock: ResourceLock | None = None
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        self._watches = (store.watch(path, self._on_notification), store.on_session(self._on_session))

    @property
    def leading(self) -> bool:
        """Whether this one leads, and no other can. Ask right before each act that only a leader may do."""
        return self._elected and self._store.lease_until > self._clock.monotonic()

    @property
    def epoch(self) -> int:
        """Of this leadership; 0 while not leading."""
        return self._lock.epoch if self._lock is not None and self.leading else 0

    @property
    def _elected(self) -> bool:
        return self._lock is not None and self._lock.held

    async def leader(self) -> bytes | None:
        """What the present leader calls itself; None while there is none."""
        record = await self._store.get(self._path)
        return None if record is None else record.value

    def start(self) -> None:
        """Begin to stand."""
        self._task = asyncio.create_task(self._stand(), name=f"election {self._path}")

    async def stop(self) -> None:
        """Stand no longer; a leader steps down."""
        for watch in self._watches:
            watch.cancel()
        self._stopped = True
        self._wake.set()
        if self._task is not None:
            await self._task  # Never cancelled: half an acquisition would leave a leader nobody knows of.
        lock, self._lock = self._lock, None
        if lock is not None and lock.held:
            self._on_change(False)
            try:
                await lock.release()
            except (StoreUnavailable, StoreClosed) as error:  # The session's end will give it up.
                _log.warning("election.not_given_up", path=self._path, reason=str(error))

    async def _stand(self) -> None:
        while not self._stopped:
            self._wake.clear()
            try:
                patience_s = None if self._elected else await self._try_once()
            except StoreClosed:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience_s):
                    await self._wake.wait()

    async def _try_once(self) -> float | None:
        """Stand once; returns for how long to wait for news before the next time."""
        try:
            self._lock = await ResourceLock.acquire(
                self._store, self._path, self._candidate, on_lost=self._on_lost
            )
        except LockTaken:
            return LOOK_AGAIN_S
        except StoreUnavailable as error:
            _log.warning("election.delayed", path=self._path, reason=str(error))
            return RETRY_S
        _log.info("election.won", path=self._path, epoch=self._lock.epoch)
        self._on_change(True)
        return None

    def _on_lost(self) -> None:
        self._on_change(False)
        self._wake.set()

    def _on_notification(self, notification: Notification) -> None:
        self._wake.set()

    def _on_session(self, state: SessionState) -> None:
        self._wake.set()
