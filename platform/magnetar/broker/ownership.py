"""Which bundles this broker serves: asked for, held with an epoch, and possibly lost at any moment.

Each bundle is a lock in the metadata store that names its owner. Whoever asks first gets it; the others send
their clients there. A lock can be lost while we hold it, when the store gives up on our session: then the
bundle's topics are dropped at once, and the storage below fences what may still be under way.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from magnetar.broker.errors import MetadataFailed, ServiceNotReady
from magnetar.environment.logs import get_logger
from magnetar.metadata.locks import LockTaken, ResourceLock

if TYPE_CHECKING:
    from magnetar.broker.namespaces.bundles import Bundle
    from magnetar.metadata.store import MetadataStore

log = get_logger("magnetar.broker")

OWNERS_PATH: Final = "/namespace"
_FORMAT: Final = 1
_ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """Who owns a bundle, and where clients find it."""

    broker_id: str
    broker_url: str
    web_url: str
    incarnation: str
    """Tells this process from earlier ones at the same address."""

    def encode(self) -> bytes:
        return json.dumps(
            {
                "version": _FORMAT,
                "brokerId": self.broker_id,
                "brokerUrl": self.broker_url,
                "webUrl": self.web_url,
                "incarnation": self.incarnation,
            }
        ).encode()

    @classmethod
    def decode(cls, value: bytes) -> BrokerAddress:
        fields = json.loads(value)
        if fields.get("version") != _FORMAT:
            raise MetadataFailed("a bundle's owner is recorded in a newer format: upgrade this broker")
        return cls(fields["brokerId"], fields["brokerUrl"], fields["webUrl"], fields["incarnation"])


@dataclass(frozen=True, slots=True)
class Owned:
    """A bundle that is ours."""

    bundle: Bundle
    epoch: int


class Ownership:
    """The bundles of this broker."""

    def __init__(
        self, metadata: MetadataStore, address: BrokerAddress, on_lost: Callable[[Bundle], None]
    ) -> None:
        self._metadata = metadata
        self.address = address
        self._on_lost = on_lost
        self._locks: dict[Bundle, ResourceLock] = {}
        self._acquiring: dict[Bundle, asyncio.Task[ResourceLock]] = {}
        self.closing = False

    @property
    def owned(self) -> Mapping[Bundle, int]:
        """Each bundle that is ours, with its epoch."""
        return {bundle: lock.epoch for bundle, lock in self._locks.items()}

    def holds(self, bundle: Bundle) -> bool:
        lock = self._locks.get(bundle)
        return lock is not None and lock.held

    async def owner(self, bundle: Bundle) -> BrokerAddress:
        """Who serves a bundle: this broker, if nobody did.

        Raises:
            ServiceNotReady: it changes hands just now.
        """
        for _ in range(_ATTEMPTS):
            try:
                await self._own(bundle)
            except LockTaken as taken:
                if taken.holder:
                    return BrokerAddress.decode(taken.holder)
            else:
                return self.address
        raise ServiceNotReady(f"bundle {bundle} is changing hands: look it up again")

    async def require(self, bundle: Bundle) -> Owned:
        """Take a bundle, or make sure that it is still ours.

        Raises:
            ServiceNotReady: it is another broker's.
        """
        owner = await self.owner(bundle)
        lock = self._locks.get(bundle)
        if owner != self.address or lock is None:
            raise ServiceNotReady(f"bundle {bundle} is served by {owner.broker_url}: look the topic up again")
        return Owned(bundle, lock.epoch)

    async def _own(self, bundle: Bundle) -> None:
        if self.holds(bundle):
            return
        if self.closing:
            raise ServiceNotReady("this broker is shutting down: look the topic up again")
        acquiring = self._acquiring.get(bundle)
        if acquiring is None:
            acquiring = asyncio.get_running_loop().create_task(self._acquire(bundle))
            self._acquiring[bundle] = acquiring
            acquiring.add_done_callback(lambda _: self._acquiring.pop(bundle, None))
        await asyncio.shield(acquiring)

    async def _acquire(self, bundle: Bundle) -> ResourceLock:
        lock = await ResourceLock.acquire(
            self._metadata,
            f"{OWNERS_PATH}/{bundle}",
            self.address.encode(),
            on_lost=lambda: self._lost(bundle),
        )
        self._locks[bundle] = lock
        log.info("bundle.acquired", bundle=str(bundle), epoch=lock.epoch)
        return lock

    def _lost(self, bundle: Bundle) -> None:
        self._locks.pop(bundle, None)
        log.warning("bundle.lost", bundle=str(bundle))
        self._on_lost(bundle)

    async def release(self, bundle: Bundle) -> None:
        """Give a bundle back. Its topics must be unloaded already."""
        lock = self._locks.pop(bundle, None)
        if lock is not None:
            await lock.release()
            log.info("bundle.released", bundle=str(bundle), epoch=lock.epoch)

    async def release_all(self) -> None:
        """Give everything back, and take nothing more."""
        self.closing = True
        for bundle in list(self._locks):
            await self.release(bundle)
