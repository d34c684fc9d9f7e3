"""Who wants to be told of which changes: shared by the stores."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from magnetar.environment.logs import get_logger
from magnetar.metadata.paths import check_path, with_ancestors
from magnetar.metadata.store import Listener, Notification, SessionListener, SessionState

_log = get_logger("magnetar.metadata")


class PrefixWatch:
    """One listener and the prefix it listens to."""

    __slots__ = ("_registry", "listener", "prefix")

    def __init__(self, registry: WatchRegistry, prefix: str, listener: Listener) -> None:
        self._registry: WatchRegistry | None = registry
        self.prefix = prefix
        self.listener = listener

    @property
    def cancelled(self) -> bool:
        return self._registry is None

    def cancel(self) -> None:
        registry, self._registry = self._registry, None
        if registry is not None:
            registry.forget(self)


class WatchRegistry:
    """Listeners by prefix. Tells them in order, never from within the call that made the change."""

    __slots__ = ("_scheduled", "_waiting", "_watches")

    def __init__(self) -> None:
        self._watches: dict[str, list[PrefixWatch]] = {}
        self._waiting: deque[tuple[PrefixWatch, Notification]] = deque()
        self._scheduled = False

    def watch(self, prefix: str, listener: Listener) -> PrefixWatch:
        watch = PrefixWatch(self, check_path(prefix), listener)
        self._watches.setdefault(prefix, []).append(watch)
        return watch

    def forget(self, watch: PrefixWatch) -> None:
        remaining = [other for other in self._watches.get(watch.prefix, ()) if other is not watch]
        if remaining:
            self._watches[watch.prefix] = remaining
        else:
            self._watches.pop(watch.prefix, None)

    def publish(self, notifications: Iterable[Notification]) -> None:
        """Hand each notification to whoever watches its path or a prefix of it, at the loop's next turn."""
        if not self._watches:
            return
        for notification in notifications:
            for path in with_ancestors(notification.path):
                for watch in self._watches.get(path, ()):
                    self._waiting.append((watch, notification))
        if self._waiting and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._tell)

    def clear(self) -> None:
        """Cancel all."""
        self._waiting.clear()
        for watches in list(self._watches.values()):
            for watch in watches:
                watch.cancel()

    def _tell(self) -> None:
        self._scheduled = False
        for _ in range(len(self._waiting)):
            watch, notification = self._waiting.popleft()
            if watch.cancelled:
                continue
            try:
                watch.listener(notification)
            except Exception:
                _log.exception("watch.listener_failed", prefix=watch.prefix, path=notification.path)
            if not self._waiting:  # The listener has closed the store.
                return


class SessionWatch:
    """One listener to the fate of a session."""

    __slots__ = ("_listeners", "listener")

    def __init__(self, listeners: SessionListeners, listener: SessionListener) -> None:
        self._listeners = listeners
        self.listener = listener

    def cancel(self) -> None:
        self._listeners.forget(self)


class SessionListeners:
    """All listeners to the fate of a session."""

    __slots__ = ("_watches",)

    def __init__(self) -> None:
        self._watches: dict[SessionWatch, None] = {}

    def add(self, listener: SessionListener) -> SessionWatch:
        watch = SessionWatch(self, listener)
        self._watches[watch] = None
        return watch

    def forget(self, watch: SessionWatch) -> None:
        self._watches.pop(watch, None)

    def tell(self, state: SessionState) -> None:
        """Tell all, in the order in which they came."""
        for watch in list(self._watches):
            if watch not in self._watches:
                continue
            try:
                watch.listener(state)
            except Exception:
                _log.exception("session.listener_failed", state=state.value)

    def clear(self) -> None:
        self._watches.clear()
