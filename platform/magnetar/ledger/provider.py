"""Where bookies are: their registrations in the metadata store, those of this process, and TCP to the others."""

from __future__ import annotations

import random
from collections.abc import Mapping

from magnetar.environment.logs import get_logger
from magnetar.ledger.bookie_client import BookieClient, BookieClientSettings
from magnetar.ledger.errors import MetadataUnavailable
from magnetar.metadata.errors import MetadataError
from magnetar.metadata.store import MetadataStore, Notification, Watch
from magnetar.protocol.bookie import AVAILABLE_PATH, COOKIES_PATH, BookieAddress, BookieConnection

log = get_logger("magnetar.ledger")

NO_LOCAL: Mapping[str, BookieConnection] = {}


class MetadataBookieProvider:
    """A `BookieProvider` over the metadata store. Bookies of this process are asked directly."""

    def __init__(
        self,
        metadata: MetadataStore,
        local: Mapping[str, BookieConnection] = NO_LOCAL,
        *,
        dice: random.Random | None = None,
        settings: BookieClientSettings | None = None,
    ) -> None:
        self._metadata = metadata
        self._local = dict(local)
        self._dice = dice or random.Random()
        self._settings = settings
        self._clients: dict[str, BookieClient] = {}
        self._known: dict[str, BookieAddress] = {}
        self._stale = True
        self._changes = 0
        self._watch: Watch | None = None

    async def writable(self) -> Mapping[str, BookieAddress]:
        """
        Raises:
            MetadataUnavailable: nothing is known yet, and the store does not answer. Later, what is known is used.
        """
        return {
            bookie: address for bookie, address in (await self.readable()).items() if not address.read_only
        }

    async def readable(self) -> Mapping[str, BookieAddress]:
        """
        Raises:
            MetadataUnavailable: as `writable` does.
        """
        await self._refresh()
        found = dict(self._known)
        for bookie in self._local:
            if bookie not in found:
                found[bookie] = BookieAddress("", "")  # Not registered, and not needing to be.
        return found

    async def known(self) -> set[str]:
        """
        Raises:
            MetadataUnavailable: the store does not answer now. A part would look like bookies that are gone.
        """
        try:
            cookies = await self._metadata.children(COOKIES_PATH)
        except MetadataError as error:
            raise MetadataUnavailable("listing cookies", str(error) or type(error).__name__) from error
        return {*cookies, *await self.readable()}

    def connection(self, bookie_id: str) -> BookieConnection:
        local = self._local.get(bookie_id)
        if local is not None:
            return local
        client = self._clients.get(bookie_id)
        if client is None:
            client = self._clients[bookie_id] = BookieClient(
                bookie_id, lambda: self._address(bookie_id), dice=self._dice, settings=self._settings
            )
        return client

    def reset(self, bookie_id: str) -> None:
        client = self._clients.get(bookie_id)
        if client is not None:
            client.reset()

    async def close(self) -> None:
        """Close the connections it has made. Local bookies stop when their owner stops them."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        for client in self._clients.values():
            await client.close()
        self._clients.clear()

    async def _address(self, bookie_id: str) -> BookieAddress | None:
        try:
            await self._refresh()
        except MetadataUnavailable as error:
            raise ConnectionError(str(error)) from error
        return self._known.get(bookie_id)

    async def _refresh(self) -> None:
        if self._watch is None:
            self._watch = self._metadata.watch(AVAILABLE_PATH, self._changed)
        if not self._stale:
            return
        changes = self._changes
        known: dict[str, BookieAddress] = {}
        try:
            for bookie in await self._metadata.children(AVAILABLE_PATH):
                record = await self._metadata.get(f"{AVAILABLE_PATH}/{bookie}")
                address = None if record is None else _parse(bookie, record.value)
                if address is not None:
                    known[bookie] = address
        except MetadataError as error:
            if not self._known and not self._local:
                raise MetadataUnavailable("listing bookies", str(error) or type(error).__name__) from error
            log.warning("bookies.not_listed", reason=str(error))
            return
        self._known = known
        self._stale = changes != self._changes

    def _changed(self, notification: Notification) -> None:
        self._changes += 1
        self._stale = True


def _parse(bookie: str, value: bytes) -> BookieAddress | None:
    try:
        return BookieAddress.decode(value)
    except ValueError as error:
        log.warning("bookie.registration_unreadable", bookie=bookie, reason=str(error))
        return None
