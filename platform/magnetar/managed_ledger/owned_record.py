"""A record in the metadata store that has one owner, who finds out at once when it has another.

Every write is a compare-and-set against the version this owner knows, and carries a revision nobody else
writes. So after a lost answer the owner can tell whether its own write took effect; anything else it finds
means that it has been deposed. It never takes over a version that it has merely read.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from magnetar.environment.clock import Clock
from magnetar.managed_ledger.errors import ManagedLedgerFenced, StorageUnavailable
from magnetar.metadata.errors import (
    BadVersion,
    MetadataError,
    NotEmpty,
    NotFound,
    StoreClosed,
    StoreUnavailable,
)
from magnetar.metadata.store import MUST_NOT_EXIST, MetadataStore

_BACKOFF_S = 0.05
_BACKOFF_MAX_S = 2.0


class OwnedRecord:
    """One record and the version at which this owner last saw it. Writes must not overlap."""

    def __init__(
        self,
        store: MetadataStore,
        path: str,
        *,
        version: int = MUST_NOT_EXIST,
        clock: Clock,
        dice: random.Random,
        patience_s: float,
    ) -> None:
        self._store = store
        self._path = path
        self._version = version
        self._clock = clock
        self._dice = dice
        self._patience_s = patience_s
        self._token = f"{dice.getrandbits(64):016x}"
        self._writes = 0
        self._in_doubt: list[bytes] = []
        """What was written without an answer since: at most one of it has taken effect, or will."""

    @property
    def next_revision(self) -> str:
        """What the next write will carry, and nobody else."""
        return f"{self._token}-{self._writes + 1}"

    async def write(self, encode: Callable[[str], bytes]) -> None:
        """Write what `encode` makes of a fresh revision.

        Raises:
            ManagedLedgerFenced: somebody else has written or deleted it.
            StorageUnavailable: no answer for too long; whether it was written will be found out by the next. Or
                the store has refused it.
        """
        self._writes += 1
        value = encode(f"{self._token}-{self._writes}")
        deadline = self._clock.monotonic() + self._patience_s
        pause_s = _BACKOFF_S
        while True:
            try:
                # A store that never answers must not hold up the log for ever; the write stays in doubt.
                async with asyncio.timeout(self._patience_s + _BACKOFF_MAX_S):
                    if await self._try(value):
                        return
            except TimeoutError as error:
                raise StorageUnavailable(self._path, "the metadata store does not answer") from error
            except BadVersion as error:
                raise ManagedLedgerFenced(self._path, str(error)) from error
            except (StoreUnavailable, StoreClosed) as error:
                if self._clock.monotonic() + pause_s > deadline:
                    raise StorageUnavailable(self._path, str(error) or type(error).__name__) from error
                await asyncio.sleep(pause_s * (0.5 + self._dice.random()))
                pause_s = min(2 * pause_s, _BACKOFF_MAX_S)
            except MetadataError as error:  # Refused, e.g. as too large: asking again would not help.
                raise StorageUnavailable(self._path, str(error)) from error

    async def _try(self, value: bytes) -> bool:
        """False if an earlier write took effect in the very moment: try again behind it."""
        doubtful = bool(self._in_doubt)
        if doubtful and await self._settle() == value:
            return True
        if value not in self._in_doubt:
            self._in_doubt.append(value)
        try:
            self._version = await self._store.put(self._path, value, expected_version=self._version)
        except BadVersion:
            if doubtful:
                return False  # One of those in doubt may have come through after all.
            self._in_doubt.clear()
            raise
        self._in_doubt.clear()
        return True

    async def _settle(self) -> bytes | None:
        """The write in doubt that took effect, if one has.

        Raises:
            BadVersion: what is there is none of ours.
        """
        found = await self._store.get(self._path)
        if found is not None and found.value in self._in_doubt:
            self._version = found.version
            self._in_doubt.clear()
            return found.value
        version = found.version if found is not None else MUST_NOT_EXIST
        if version != self._version:
            self._in_doubt.clear()
            raise BadVersion(self._path, self._version, found.version if found is not None else None)
        return None

    async def verify(self) -> None:
        """Look whether the record is still ours.

        Raises:
            ManagedLedgerFenced, StorageUnavailable
        """
        version = self._version
        try:
            async with asyncio.timeout(self._patience_s + _BACKOFF_MAX_S):
                found = await self._store.get(self._path)
        except TimeoutError as error:
            raise StorageUnavailable(self._path, "the metadata store does not answer") from error
        except (StoreUnavailable, StoreClosed) as error:
            raise StorageUnavailable(self._path, str(error) or type(error).__name__) from error
        actual = found.version if found is not None else None
        if self._in_doubt:
            return  # A write of ours is on its way; how that ends will tell.
        if actual != version and version == self._version:
            raise ManagedLedgerFenced(self._path, f"version {version} was expected, and {actual} found")

    async def delete(self) -> None:
        """Delete the record, if this owner still has it.

        Raises:
            ManagedLedgerFenced
            StorageUnavailable: or something has been put below it meanwhile.
        """
        try:
            await self._store.delete(self._path, expected_version=self._version)
        except NotFound:
            return
        except BadVersion as error:
            raise ManagedLedgerFenced(self._path, str(error)) from error
        except (StoreUnavailable, StoreClosed, NotEmpty) as error:
            raise StorageUnavailable(self._path, str(error) or type(error).__name__) from error
