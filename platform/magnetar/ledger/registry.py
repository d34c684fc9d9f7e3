"""The metadata of all ledgers in the metadata store, and the one loop by which they change.

Every change is a question to a pure function (what should this record become, or nothing), answered by a
compare-and-set, and asked again about whatever is found after a conflict or a lost answer. So a change that
did happen, though its answer was lost, is found done. Source: BookKeeper `MetadataUpdateLoop`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from magnetar.environment.clock import Clock
from magnetar.ledger.errors import MetadataUnavailable, NoSuchLedger
from magnetar.ledger.metadata import (
    LEDGERS_PATH,
    LedgerMetadata,
    decode_metadata,
    encode_metadata,
    ledger_id_of,
    ledger_path,
)
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.metadata.errors import AlreadyExists, BadVersion, NotFound, StoreClosed, StoreUnavailable
from magnetar.metadata.store import MUST_NOT_EXIST, MetadataStore

DATA_PATH = f"{LEDGERS_PATH}/data"

Change = Callable[[LedgerMetadata], LedgerMetadata | None]
"""What a ledger's metadata should become; None: they are well as they are. May be asked more than once."""


class _Patience:
    """Waits longer each time, and not for ever."""

    def __init__(self, what: str, clock: Clock, dice: random.Random, settings: LedgerClientSettings) -> None:
        self._what = what
        self._clock = clock
        self._dice = dice
        self._deadline = clock.monotonic() + settings.metadata_retry_s
        self._pause_s = settings.metadata_backoff_s
        self._pause_max_s = settings.metadata_backoff_max_s

    async def wait(self, error: Exception) -> None:
        if self._clock.monotonic() + self._pause_s > self._deadline:
            raise MetadataUnavailable(self._what, str(error) or type(error).__name__) from error
        await asyncio.sleep(self._pause_s * (0.5 + self._dice.random()))
        self._pause_s = min(self._pause_s * 2, self._pause_max_s)


class LedgerRegistry:
    """Reads and changes ledgers' metadata.

    All methods raise `MetadataUnavailable` once the store has not answered for long enough.
    """

    def __init__(
        self, store: MetadataStore, clock: Clock, dice: random.Random, settings: LedgerClientSettings
    ) -> None:
        self._store = store
        self._clock = clock
        self._dice = dice
        self._settings = settings

    async def create(self, metadata: LedgerMetadata) -> bool:
        """Create the record. False: the id is another's; take a new one."""
        path, value = ledger_path(metadata.ledger_id), encode_metadata(metadata)
        patience = self._patience(f"creating ledger {metadata.ledger_id}")
        while True:
            try:
                await self._store.put(path, value, expected_version=MUST_NOT_EXIST)
                return True
            except AlreadyExists:
                found = await self.get(metadata.ledger_id)
                return found is not None and found[0].token == metadata.token
            except (StoreUnavailable, StoreClosed) as error:
                await patience.wait(error)

    async def get(self, ledger_id: int) -> tuple[LedgerMetadata, int] | None:
        """The metadata and the version they were read at."""
        patience = self._patience(f"reading the metadata of ledger {ledger_id}")
        while True:
            try:
                found = await self._store.get(ledger_path(ledger_id))
            except (StoreUnavailable, StoreClosed) as error:
                await patience.wait(error)
            else:
                return None if found is None else (decode_metadata(ledger_id, found.value), found.version)

    async def read(self, ledger_id: int) -> LedgerMetadata:
        """
        Raises:
            NoSuchLedger, MetadataCorrupt
        """
        found = await self.get(ledger_id)
        if found is None:
            raise NoSuchLedger(ledger_id)
        return found[0]

    async def update(self, ledger_id: int, change: Change) -> LedgerMetadata:
        """Bring about `change` and return what is stored then, which the caller must look at.

        Raises:
            NoSuchLedger: it is deleted.
        """
        patience = self._patience(f"changing the metadata of ledger {ledger_id}")
        while True:
            found = await self.get(ledger_id)
            if found is None:
                raise NoSuchLedger(ledger_id)
            current, version = found
            wanted = change(current)
            if wanted is None:
                return current
            try:
                await self._store.put(
                    ledger_path(ledger_id), encode_metadata(wanted), expected_version=version
                )
            except BadVersion:
                continue
            except (StoreUnavailable, StoreClosed) as error:
                await patience.wait(error)
            else:
                return wanted

    async def delete(self, ledger_id: int) -> None:
        """Delete the record, if there is one. The bookies find out by themselves."""
        patience = self._patience(f"deleting ledger {ledger_id}")
        while True:
            try:
                await self._store.delete(ledger_path(ledger_id))
            except NotFound:
                return
            except (StoreUnavailable, StoreClosed) as error:
                await patience.wait(error)
            else:
                return

    async def list(self) -> list[int]:
        """The ids of all ledgers, ascending. Complete, or an error: a part would look like deletions."""
        ids: list[int] = []
        try:
            for high in await self._store.children(DATA_PATH):
                for middle in await self._store.children(f"{DATA_PATH}/{high}"):
                    names = await self._store.children(f"{DATA_PATH}/{high}/{middle}")
                    ids += [ledger_id_of(f"{high}/{middle}/{name}") for name in names]
        except (StoreUnavailable, StoreClosed) as error:
            raise MetadataUnavailable("listing ledgers", str(error)) from error
        return ids

    def _patience(self, what: str) -> _Patience:
        return _Patience(what, self._clock, self._dice, self._settings)
