"""Sole ownership of a named resource, for as long as the store believes that we live.

A lock is an ephemeral record, and it can be lost at any moment: whoever holds it is told, and must in
addition be fenced by what it guards, because a paused process hears late. That is what the epoch is for: it
is higher for every later holder, so whatever remembers the highest epoch it has seen can turn older ones away.
"""

from __future__ import annotations

from collections.abc import Callable

from magnetar.environment.logs import get_logger
from magnetar.metadata.errors import AlreadyExists, BadVersion, MetadataError, NotFound
from magnetar.metadata.store import MUST_NOT_EXIST, Change, MetadataStore, Notification, SessionState

EPOCHS = "/magnetar/epochs"

_log = get_logger("magnetar.metadata")


class LockTaken(MetadataError):
    """Someone else holds the lock; `holder` is what it wrote there (b"" if it has just gone)."""

    def __init__(self, path: str, holder: bytes) -> None:
        super().__init__(f"{path} is held by {holder.decode('utf-8', 'replace') or 'another session'}")
        self.path = path
        self.holder = holder


class ResourceLock:
    """A lock that is held. Made by `acquire`."""

    __slots__ = ("_on_lost", "_session", "_store", "_watches", "epoch", "held", "path", "value")

    def __init__(
        self, store: MetadataStore, path: str, value: bytes, epoch: int, on_lost: Callable[[], None]
    ) -> None:
        self._store = store
        self._session = store.session_id
        self._on_lost = on_lost
        self.path = path
        self.value = value
        self.epoch = epoch
        self.held = True
        self._watches = (store.watch(path, self._on_change), store.on_session(self._on_session))

    @classmethod
    async def acquire(
        cls, store: MetadataStore, path: str, value: bytes, *, on_lost: Callable[[], None]
    ) -> ResourceLock:
        """Take the lock at once, or not at all.

        Args:
            value: says who holds it, and must tell this holder from every other.
            on_lost: called once, on the loop, if the lock is lost other than by `release`.
        Raises:
            LockTaken: someone else has it.
            StoreUnavailable: not known; ask again, a lock taken unknowingly by this session is then ours.
        """
        try:
            await store.put(path, value, expected_version=MUST_NOT_EXIST, ephemeral=True)
        except AlreadyExists:
            record = await store.get(path)
            if record is None or record.session != store.session_id or record.value != value:
                raise LockTaken(path, b"" if record is None else record.value) from None
        session = store.session_id
        # Counted while holding, then checked: a holder that comes later therefore counts higher.
        epoch = await next_epoch(store, path)
        lock = cls(store, path, value, epoch, on_lost)
        try:
            record = await store.get(path)
        except BaseException:
            lock._disarm()  # The next try makes a lock of its own; this one must not tell of that one's end.
            raise
        # The news of its loss can be quicker than the answer to this last look.
        if not lock.held or record is None or record.session != session or session != store.session_id:
            lock._disarm()
            raise LockTaken(path, b"" if record is None else record.value)
        return lock

    async def update(self, value: bytes) -> None:
        """Change what the record says. Raises LockTaken if the lock has been lost."""
        record = await self._store.get(self.path)
        if record is None or record.session != self._session:
            self._lose("found_taken")
            raise LockTaken(self.path, b"" if record is None else record.value)
        try:
            await self._store.put(self.path, value, expected_version=record.version)
        except BadVersion as error:
            self._lose("found_taken")
            raise LockTaken(self.path, b"") from error
        self.value = value

    async def release(self) -> None:
        """Give the lock back. Nothing happens if it is lost already; `on_lost` is not called."""
        if not self.held:
            return
        self._disarm()
        record = await self._store.get(self.path)
        if record is not None and record.session == self._session:
            try:
                await self._store.delete(self.path, expected_version=record.version)
            except (NotFound, BadVersion) as error:
                _log.info("lock.gone_before_release", path=self.path, reason=str(error))

    def _on_change(self, notification: Notification) -> None:
        # No one but the holder writes to a lock: the record goes only with the session or by force.
        if self.held and notification.kind is Change.DELETED and notification.path == self.path:
            self._lose("deleted")

    def _on_session(self, state: SessionState) -> None:
        if self.held and state is SessionState.EXPIRED:
            self._lose("session_expired")

    def _lose(self, reason: str) -> None:
        if self.held:
            self._disarm()
            _log.warning("lock.lost", path=self.path, epoch=self.epoch, reason=reason)
            self._on_lost()

    def _disarm(self) -> None:
        self.held = False
        for watch in self._watches:
            watch.cancel()


async def next_epoch(store: MetadataStore, path: str) -> int:
    """Count up the epoch of `path`, from 1, and return it."""
    counter = f"{EPOCHS}{path}"
    while True:
        record = await store.get(counter)
        epoch = 1 if record is None or not record.value else _decode_epoch(counter, record.value) + 1
        expected = MUST_NOT_EXIST if record is None else record.version
        try:
            await store.put(counter, f"1 {epoch}".encode(), expected_version=expected)
        except BadVersion:
            continue
        return epoch


def _decode_epoch(path: str, value: bytes) -> int:
    version, _, epoch = value.partition(b" ")
    if version != b"1":
        raise MetadataError(f"{path} has a format this version does not know ({value!r}): upgrade Magnetar")
    return int(epoch)
