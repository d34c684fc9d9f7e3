"""What every metadata store promises.

Writes to one path take effect one after the other, each giving the record a new version; whoever asks with
the version it has read wins or is told. Nothing is answered, and no watch fires, before the change would
survive a power cut of the store. All methods and listeners run on the event loop.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from magnetar.metadata.batch import Write

VALUE_BYTES_MAX = 1_000_000  # ZooKeeper drops a connection that sends more than 0xfffff bytes.
MUST_NOT_EXIST = -1


@dataclass(frozen=True, slots=True)
class Versioned:
    """A record as it was read."""

    value: bytes
    version: int  # 0 when created, one more at each change.
    session: str = ""  # The session whose end removes it; "" if it stays.
    created_ms: int = 0
    modified_ms: int = 0

    @property
    def ephemeral(self) -> bool:
        return bool(self.session)


class Change(enum.Enum):
    """What happened to a watched record."""

    CREATED = "created"
    MODIFIED = "modified"
    DELETED = "deleted"
    CHILDREN_CHANGED = "children_changed"


@dataclass(frozen=True, slots=True)
class Notification:
    """Something changed: read again. Changes close together may come as one."""

    kind: Change
    path: str


class SessionState(enum.Enum):
    """How this process stands with its store."""

    CONNECTED = "connected"
    LOST_CONNECTION = "lost_connection"  # The session may live or not; nothing can be asked for now.
    REESTABLISHED = "reestablished"  # After LOST_CONNECTION: the same session, ephemerals and all.
    EXPIRED = "expired"  # Ephemerals are gone; CONNECTED follows with a new session.


Listener: TypeAlias = Callable[[Notification], None]
SessionListener: TypeAlias = Callable[[SessionState], None]


class Watch(Protocol):
    """A standing wish to be told."""

    def cancel(self) -> None:
        """No call comes after this. Cancelling twice does no harm."""
        ...


class MetadataStore(Protocol):
    """A tree of small versioned records.

    Any method may raise StoreUnavailable (unknown outcome), InvalidPath, and StoreClosed.
    """

    @property
    def session_id(self) -> str:
        """Names the current session: the `Versioned.session` of our own ephemerals."""
        ...

    @property
    def lease_until(self) -> float:
        """Until when, by `time.monotonic()`, the store cannot have given this session's ephemerals away.

        Infinite where nobody else could take them; minus infinite where there is no session.
        """
        ...

    async def get(self, path: str) -> Versioned | None: ...

    async def put(
        self, path: str, value: bytes, *, expected_version: int | None = None, ephemeral: bool = False
    ) -> int:
        """Write a record, making missing parents, and return its new version.

        Args:
            expected_version: None creates or overwrites; -1 (MUST_NOT_EXIST) only creates; otherwise the
                record must be at exactly that version.
            ephemeral: a record made by this call ends with this session. One that exists keeps its nature.
        Raises:
            BadVersion: also where a version was expected of a record that does not exist.
            AlreadyExists: with -1.
        """
        ...

    async def write_all(self, writes: Sequence[Write]) -> list[int | None]:
        """Write and delete several records, as one change or not at all; answers the new version of each one put.

        No path may be another's or lie below another's. Missing parents are made, and may stay though the rest is
        refused.

        Raises:
            As `put` and `delete` would for one of the writes; then none of them has happened.
            InvalidBatch, ValueTooLarge: more than `batch.py` allows at once.
        """
        ...

    async def create_sequential(self, prefix: str, value: bytes, *, ephemeral: bool = False) -> str:
        """Create `prefix` plus a ten-digit number that no sibling had before, and return the whole path.

        Numbers below one parent only grow, while that parent exists.
        """
        ...

    async def delete(self, path: str, *, expected_version: int | None = None) -> None:
        """Raises NotFound, BadVersion, NotEmpty."""
        ...

    async def delete_recursive(self, path: str) -> None:
        """Delete a record and all below it; nothing happens if it does not exist. Not atomic."""
        ...

    async def children(self, path: str) -> list[str]:
        """The names directly below `path`, sorted; none if it does not exist."""
        ...

    async def exists(self, path: str) -> bool: ...

    def watch(self, prefix: str, listener: Listener) -> Watch:
        """Tell `listener` of changes of `prefix` and everything below it, in order for each path.

        `/a` covers `/a` and `/a/b`, not `/ab`. Changes that end before the watch has reached the store may
        go unseen: watch first, then read.
        """
        ...

    def on_session(self, listener: SessionListener) -> Watch:
        """Tell `listener` how the session fares from now on."""
        ...

    async def close(self) -> None:
        """End the session: our ephemerals go at once, and no listener is called any more."""
        ...
