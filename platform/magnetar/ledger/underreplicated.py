"""Ledgers of which copies are missing, as marks in the metadata store, and the locks of those who repair them.

    ROOT/ledgers/<6 digits>/<7 digits>/<6 digits>   the mark: {"version": 1, "missing": [bookie, …]}
    ROOT/locks/<ledger id>                          ephemeral: who works on it
    ROOT/marked                                     changes when something was marked: what workers watch
    ROOT/disable                                    while it exists, nothing is audited or repaired

A mark says that somebody found, or fears, too few copies; never that all is well without one. Whoever marks
again changes the record's version, so that a repair which looked before that cannot take the mark away.
Described in `docs/formats/autorecovery.md`. Source: BookKeeper `ZkLedgerUnderreplicationManager`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from magnetar.ledger.errors import MetadataCorrupt, MetadataUnavailable
from magnetar.ledger.metadata import LEDGERS_PATH
from magnetar.metadata.errors import AlreadyExists, BadVersion, NotFound, StoreClosed, StoreUnavailable
from magnetar.metadata.store import (
    MUST_NOT_EXIST,
    Change,
    Listener,
    MetadataStore,
    Notification,
    SessionState,
    Watch,
)

FORMAT_VERSION = 1
ROOT = f"{LEDGERS_PATH}/underreplication"
MARKS_PATH = f"{ROOT}/ledgers"
LOCKS_PATH = f"{ROOT}/locks"
MARKED_PATH = f"{ROOT}/marked"
DISABLE_PATH = f"{ROOT}/disable"
_DIGITS = 19


@dataclass(frozen=True, slots=True)
class UnderreplicatedLedger:
    """A mark as it was read."""

    ledger_id: int
    missing: tuple[str, ...]
    """The bookies that were found or feared to lack entries, sorted."""
    since_ms: int
    """When it was first marked, by the store's clock."""
    version: int


class LedgerLock:
    """The right to repair one ledger. It can be lost with the session; then compare-and-set on the ledger's
    metadata arbitrates, and copies made twice do no harm."""

    __slots__ = ("_path", "_store", "_watches", "held", "ledger_id")

    def __init__(self, store: MetadataStore, path: str, ledger_id: int) -> None:
        self._store = store
        self._path = path
        self.ledger_id = ledger_id
        self.held = True
        self._watches = (store.watch(path, self._on_change), store.on_session(self._on_session))

    async def release(self) -> None:
        """Give it back; nothing happens if it is lost already. The session's end gives back what the store
        could not be told of."""
        if not self.held:
            return
        self._lose()
        session = self._store.session_id
        with telling(f"unlocking ledger {self.ledger_id}"):
            record = await self._store.get(self._path)
            if record is None or record.session != session:
                return
            try:
                await self._store.delete(self._path, expected_version=record.version)
            except (NotFound, BadVersion):
                return  # The session ended in between, and the record with it.

    def _on_change(self, notification: Notification) -> None:
        if notification.kind is Change.DELETED and notification.path == self._path:
            self._lose()

    def _on_session(self, state: SessionState) -> None:
        if state is SessionState.EXPIRED:
            self._lose()

    def _lose(self) -> None:
        self.held = False
        for watch in self._watches:
            watch.cancel()


class UnderreplicatedLedgers:
    """The marks of one store. All methods raise MetadataUnavailable where the store gives no answer."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def mark(self, ledger_id: int, missing: Collection[str], *, tell: bool = True) -> None:
        """Say that `missing` may lack entries of a ledger, beside those that are said to already.

        Args:
            tell: wake the workers. Whoever marks many ledgers tells once, by `tell()`, at the end.
        """
        path = _mark_path(ledger_id)
        with telling(f"marking ledger {ledger_id} as under-replicated"):
            while True:
                found = await self._store.get(path)
                before = () if found is None else _decode(ledger_id, found.value)
                value = _encode(sorted({*before, *missing}))
                expected = MUST_NOT_EXIST if found is None else found.version
                try:
                    await self._store.put(path, value, expected_version=expected)
                except BadVersion:
                    continue  # Someone else marked or cleared it: merge with what is there now.
                break
        if tell:
            await self.tell()

    async def tell(self) -> None:
        """Wake whoever watches."""
        with telling("telling of under-replicated ledgers"):
            await self._store.put(MARKED_PATH, json.dumps({"version": FORMAT_VERSION}).encode())

    async def get(self, ledger_id: int) -> UnderreplicatedLedger | None:
        with telling(f"reading the mark of ledger {ledger_id}"):
            found = await self._store.get(_mark_path(ledger_id))
        if found is None:
            return None
        return UnderreplicatedLedger(
            ledger_id, _decode(ledger_id, found.value), found.created_ms, found.version
        )

    async def ids(self) -> list[int]:
        """The marked ledgers, ascending."""
        ids: list[int] = []
        with telling("listing under-replicated ledgers"):
            for high in await self._store.children(MARKS_PATH):
                for middle in await self._store.children(f"{MARKS_PATH}/{high}"):
                    names = await self._store.children(f"{MARKS_PATH}/{high}/{middle}")
                    ids += [int(f"{high}{middle}{name}") for name in names]
        return ids

    async def list(self) -> list[UnderreplicatedLedger]:
        """All marks, by ascending ledger id."""
        found = [await self.get(ledger_id) for ledger_id in await self.ids()]
        return [mark for mark in found if mark is not None]

    async def clear(self, mark: UnderreplicatedLedger) -> bool:
        """Take a mark away, unless the ledger was marked again since it was read. Whether it is gone.

        Only for the holder of the ledger's lock: another's deletion and a new mark could otherwise look like
        the mark that was read.
        """
        with telling(f"clearing the mark of ledger {mark.ledger_id}"):
            try:
                await self._store.delete(_mark_path(mark.ledger_id), expected_version=mark.version)
            except NotFound:
                return True
            except BadVersion:
                return False
        return True

    async def lock(self, ledger_id: int, owner: str) -> LedgerLock | None:
        """Take the right to repair a ledger; None while someone else has it.

        Args:
            owner: tells this worker from every other.
        """
        path = f"{LOCKS_PATH}/{ledger_id:0{_DIGITS}d}"
        value = json.dumps({"version": FORMAT_VERSION, "owner": owner}).encode()
        with telling(f"locking ledger {ledger_id}"):
            try:
                await self._store.put(path, value, expected_version=MUST_NOT_EXIST, ephemeral=True)
            except AlreadyExists:
                record = await self._store.get(path)
                # An answer that was lost: the lock is ours without our having known.
                if record is None or record.session != self._store.session_id or record.value != value:
                    return None
        return LedgerLock(self._store, path, ledger_id)

    async def locks(self) -> dict[int, str]:
        """Who works on which ledger now."""
        owners: dict[int, str] = {}
        with telling("listing the locks of under-replicated ledgers"):
            for name in await self._store.children(LOCKS_PATH):
                record = await self._store.get(f"{LOCKS_PATH}/{name}")
                if record is not None:
                    owners[int(name)] = str(decode_record(f"{LOCKS_PATH}/{name}", record.value)["owner"])
        return owners

    def watch(self, listener: Listener) -> Watch:
        """Tell `listener` when ledgers have been marked. Some news may be lost: look by yourself now and then."""
        return self._store.watch(MARKED_PATH, listener)

    async def pause(self) -> None:
        """Have nothing audited or repaired, by anyone, until `resume`."""
        with telling("pausing autorecovery"):
            await self._store.put(DISABLE_PATH, json.dumps({"version": FORMAT_VERSION}).encode())

    async def resume(self) -> None:
        with telling("resuming autorecovery"):
            try:
                await self._store.delete(DISABLE_PATH)
            except NotFound:
                return
        await self.tell()

    async def paused(self) -> bool:
        with telling("asking whether autorecovery is paused"):
            return await self._store.exists(DISABLE_PATH)


@contextmanager
def telling(what: str) -> Iterator[None]:
    """A store that gives no answer is told as `MetadataUnavailable`, with what was wanted of it."""
    try:
        yield
    except (StoreUnavailable, StoreClosed) as error:
        raise MetadataUnavailable(what, str(error) or type(error).__name__) from error


def _mark_path(ledger_id: int) -> str:
    digits = f"{ledger_id:0{_DIGITS}d}"
    return f"{MARKS_PATH}/{digits[:6]}/{digits[6:13]}/{digits[13:]}"


def _encode(missing: Collection[str]) -> bytes:
    return json.dumps({"version": FORMAT_VERSION, "missing": list(missing)}, separators=(",", ":")).encode()


def _decode(ledger_id: int, value: bytes) -> tuple[str, ...]:
    document = decode_record(f"the mark of ledger {ledger_id}", value)
    try:
        return tuple(sorted(map(str, document["missing"])))
    except (KeyError, TypeError) as error:
        raise MetadataCorrupt(
            f"the mark of ledger {ledger_id}", f"{type(error).__name__}: {error}"
        ) from error


def decode_record(what: str, value: bytes) -> dict[str, Any]:
    """A record of autorecovery: a JSON object of a version that is known.

    Raises:
        MetadataCorrupt
    """
    try:
        document: dict[str, Any] = json.loads(value)
        version = document["version"]
    except (ValueError, KeyError, TypeError) as error:
        raise MetadataCorrupt(what, f"{type(error).__name__}: {error}") from error
    if version != FORMAT_VERSION:
        raise MetadataCorrupt(what, f"format version {version}; this software knows {FORMAT_VERSION}")
    return document
