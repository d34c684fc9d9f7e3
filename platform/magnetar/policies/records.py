"""Records: policy models in the metadata store, remembered until a watch says that they have changed.

A stored record is the model's JSON with `"version": 1`, the format, before everything else; a record without
it was written by Pulsar, whose names and paths these are.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, TypeVar

from magnetar.environment.logs import get_logger
from magnetar.metadata.errors import AlreadyExists, BadVersion
from magnetar.metadata.errors import NotFound as RecordNotFound
from magnetar.metadata.store import MUST_NOT_EXIST, Change, MetadataStore, Notification, SessionState
from magnetar.policies.errors import BadValue, Conflict, NewerFormat, NotFound
from magnetar.policies.model import PolicyModel

log = get_logger("magnetar.policies")

FORMAT_VERSION: Final = 1
REMEMBERED_MAX: Final = 50_000
"""Records kept in memory, absences included; the longest known are forgotten first."""
ATTEMPTS_MAX: Final = 16
"""How often a change is tried anew because somebody else was faster."""

Model = TypeVar("Model", bound=PolicyModel)


def encode(data: dict[str, Any]) -> bytes:
    """A record's bytes."""
    return json.dumps({"version": FORMAT_VERSION, **data}, separators=(",", ":"), ensure_ascii=False).encode()


def decode(path: str, value: bytes) -> dict[str, Any]:
    """A record's content.

    Raises:
        NewerFormat: a newer version of the platform has written it.
        BadValue: it is no JSON object.
    """
    try:
        data = json.loads(value) if value else {}
    except ValueError as error:
        raise BadValue(f"the record at {path} is damaged: {error}") from None
    if not isinstance(data, dict):
        raise BadValue(f"the record at {path} is damaged: it is no JSON object")
    version = data.pop("version", FORMAT_VERSION)
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise NewerFormat(
            f"the record at {path} has format {version}, this platform reads {FORMAT_VERSION}: upgrade it"
        )
    return data


class RecordCache:
    """What has been read from the store, forgotten as soon as it may have changed.

    One watch per root. A change that is told while a read is in flight keeps its result from being
    remembered, so that nothing stale stays.
    """

    def __init__(self, metadata: MetadataStore, roots: tuple[str, ...]) -> None:
        self.metadata = metadata
        self._known: dict[str, PolicyModel | None] = {}
        self._lists: dict[str, list[str]] = {}
        self._told = 0
        """Grows with every notification."""
        self._changed_at: dict[str, int] = {}
        """While reads are in flight: which path was told of, and when."""
        self._in_flight = 0
        self._listeners: list[Callable[[str], None]] = []
        self._watches = [metadata.watch(root, self._notified) for root in roots]
        metadata.on_session(self._session_changed)

    def on_change(self, listener: Callable[[str], None]) -> None:
        """Tell `listener` the path of every record that has changed, and "" where anything may have."""
        self._listeners.append(listener)

    def close(self) -> None:
        """Watch no longer, and remember nothing."""
        for watch in self._watches:
            watch.cancel()
        self._listeners.clear()
        self._forget_all()

    async def get(self, path: str, kind: type[Model]) -> Model | None:
        """The record at `path`, None if there is none."""
        if path in self._known:
            return self._known[path]  # type: ignore[return-value]  # A path always holds the same kind.
        since = self._begin()
        try:
            stored = await self.metadata.get(path)
        finally:
            stale = self._end(path, since)
        record = None if stored is None else kind.read(decode(path, stored.value))
        if not stale:
            if len(self._known) >= REMEMBERED_MAX:
                del self._known[next(iter(self._known))]
            self._known[path] = record
        return record

    async def names(self, path: str) -> list[str]:
        """The names below `path`, sorted."""
        if path in self._lists:
            return list(self._lists[path])
        since = self._begin()
        try:
            names = await self.metadata.children(path)
        finally:
            stale = self._end(path, since)
        if not stale:
            if len(self._lists) >= REMEMBERED_MAX:
                del self._lists[next(iter(self._lists))]
            self._lists[path] = names
        return list(names)

    async def create(self, path: str, record: PolicyModel, already: str) -> None:
        """Store a new record.

        Raises:
            Conflict: there is one, `already` says which.
        """
        try:
            await self.metadata.put(path, encode(record.to_json()), expected_version=MUST_NOT_EXIST)
        except AlreadyExists:
            raise Conflict(already) from None
        finally:
            self.forget(path)

    async def change(
        self,
        path: str,
        kind: type[Model],
        change: Callable[[Model], Model],
        missing: str | None,
    ) -> Model:
        """Read, change and write a record, as often as it takes nobody else to be in between.

        Args:
            change: what to make of the record; may be called more than once. Nothing is written if it
                returns what it was given.
            missing: what to say if there is no record; None: start from an empty one.
        Raises:
            NotFound: there is no record.
            Conflict: others keep changing it.
        """
        try:
            for _ in range(ATTEMPTS_MAX):
                stored = await self.metadata.get(path)
                if stored is None and missing is not None:
                    raise NotFound(missing)
                before = kind.read(decode(path, stored.value) if stored is not None else {})
                after = change(before)
                if after == before and stored is not None:
                    return after
                try:
                    await self.metadata.put(
                        path,
                        encode(after.to_json()),
                        expected_version=MUST_NOT_EXIST if stored is None else stored.version,
                    )
                except BadVersion:
                    continue
                return after
        finally:
            self.forget(path)
        raise Conflict(f"Concurrent modification: {path} was changed {ATTEMPTS_MAX} times meanwhile; retry")

    async def delete(self, path: str, missing: str | None) -> None:
        """Remove a record.

        Raises:
            NotFound: there is none, and `missing` says what to say of that.
        """
        try:
            await self.metadata.delete(path)
        except RecordNotFound:
            if missing is not None:
                raise NotFound(missing) from None
        finally:
            self.forget(path)

    async def delete_all(self, path: str) -> None:
        """Remove a record and everything below it."""
        try:
            await self.metadata.delete_recursive(path)
        finally:
            self._forget_below(path)

    # Forgetting.

    def forget(self, path: str) -> None:
        """Read `path` anew when it is next asked for."""
        self._told += 1
        self._drop(path)
        self._drop(path.rpartition("/")[0])

    def _drop(self, path: str) -> None:
        self._known.pop(path, None)
        self._lists.pop(path, None)
        if self._in_flight:
            self._changed_at[path] = self._told

    def _forget_below(self, path: str) -> None:
        self.forget(path)
        below = f"{path}/"
        for known in [each for each in (*self._known, *self._lists) if each.startswith(below)]:
            self._drop(known)

    def _forget_all(self) -> None:
        self._told += 1
        self._known.clear()
        self._lists.clear()
        if self._in_flight:
            self._changed_at[""] = self._told

    def _begin(self) -> int:
        self._in_flight += 1
        return self._told

    def _end(self, path: str, since: int) -> bool:
        """Whether a read of `path` that began at `since` may have missed a change."""
        stale = max(self._changed_at.get(path, -1), self._changed_at.get("", -1)) > since
        self._in_flight -= 1
        if not self._in_flight:
            self._changed_at.clear()
        return stale

    def _notified(self, notification: Notification) -> None:
        self._told += 1
        self._drop(notification.path)
        if notification.kind is not Change.CHILDREN_CHANGED:
            self._drop(notification.path.rpartition("/")[0])
            self._tell(notification.path)

    def _session_changed(self, state: SessionState) -> None:
        if state is not SessionState.LOST_CONNECTION:
            self._forget_all()  # Whatever changed while nobody told us.
            self._tell("")

    def _tell(self, path: str) -> None:
        for listener in list(self._listeners):
            try:
                listener(path)
            except Exception:
                log.exception("policy_listener.failed", path=path)
