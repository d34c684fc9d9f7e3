"""Which bundles this broker serves: asked for, held with an epoch, and possibly lost at any moment.

Each bundle is a lock in the metadata store that names its owner. One that nobody owns goes to the broker that
`Neighbours` designate; the others send their clients there. A lock can be lost while we hold it, when the store
gives up on our session: then the bundle's topics are dropped at once, and the storage below fences what may
still be under way.

Whoever asks for a bundle whose owner does not answer waits, up to a limit, until it has one that does: its
broker has probably died, and the store will say so in a moment.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from magnetar.broker.errors import MetadataFailed, ServiceNotReady
from magnetar.broker.parking import Parking
from magnetar.environment.logs import get_logger
from magnetar.metadata.errors import BadVersion, NotFound, StoreUnavailable
from magnetar.metadata.locks import LockTaken, ResourceLock

if TYPE_CHECKING:
    from magnetar.broker.namespaces.bundles import Bundle
    from magnetar.metadata.store import MetadataStore, Versioned

log = get_logger("magnetar.broker")

OWNERS_PATH: Final = "/namespace"
_FORMAT: Final = 1
_LOOK_AGAIN_S: Final = 0.1
_WAIT_S: Final = 10.0
_PLACES: Final = 10_000
_GIVEN_FOR_S: Final = 5.0


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


class Neighbours(Protocol):
    """What is known of the other brokers."""

    def candidates(self, bundle: Bundle) -> Sequence[BrokerAddress]:
        """Who should take a bundle that nobody owns, the best first; this broker may be among them."""
        ...

    async def answers(self, address: BrokerAddress) -> bool:
        """Whether a broker is alive, as far as can be told from here."""
        ...

    def trust(self, address: BrokerAddress) -> None:
        """A broker has kept its session for long without answering: it lives, and only we do not reach it."""
        ...


class Alone:
    """No other brokers, or none that are known: whoever owns a bundle is believed to live."""

    def candidates(self, bundle: Bundle) -> Sequence[BrokerAddress]:
        return ()

    async def answers(self, address: BrokerAddress) -> bool:
        return True

    def trust(self, address: BrokerAddress) -> None:
        """It is, anyway."""


class Ownership:
    """The bundles of this broker."""

    def __init__(
        self,
        metadata: MetadataStore,
        address: BrokerAddress,
        on_lost: Callable[[Bundle], None],
        *,
        neighbours: Neighbours | None = None,
        wait_s: float = _WAIT_S,
        parking: Parking | None = None,
    ) -> None:
        self._metadata = metadata
        self.address = address
        self._on_lost = on_lost
        self._neighbours = neighbours or Alone()
        self._wait_s = wait_s
        self._parking = parking or Parking(_PLACES)
        self._locks: dict[Bundle, ResourceLock] = {}
        self._acquiring: dict[Bundle, asyncio.Task[ResourceLock]] = {}
        self._resolving: dict[tuple[Bundle, bool], asyncio.Task[BrokerAddress]] = {}
        self._expected: dict[Bundle, float] = {}
        self._leaving: set[Bundle] = set()
        self._given: dict[Bundle, tuple[BrokerAddress, float]] = {}
        self.closing = False

    @property
    def owned(self) -> Mapping[Bundle, int]:
        """Each bundle that is ours, with its epoch."""
        return {bundle: lock.epoch for bundle, lock in self._locks.items()}

    def holds(self, bundle: Bundle) -> bool:
        lock = self._locks.get(bundle)
        return lock is not None and lock.held and bundle not in self._leaving

    def still(self, owned: Owned) -> bool:
        """Whether a bundle has been ours without a break since `owned` was had."""
        return self.holds(owned.bundle) and self._locks[owned.bundle].epoch == owned.epoch

    def expect(self, bundle: Bundle, for_s: float) -> None:
        """Its owner is about to give a bundle to us: wait for that, instead of sending clients back there."""
        self._expected[bundle] = asyncio.get_running_loop().time() + for_s
        self._given.pop(bundle, None)

    async def owner(self, bundle: Bundle, *, take: bool = True) -> BrokerAddress:
        """Who serves a bundle; if nobody does, this broker takes it. With `take` false only if it is the best for it.

        Raises:
            ServiceNotReady: it has no owner, and nobody takes it in time.
            MetadataFailed: the store does not tell in time.
            TooManyRequests: too many wait already.
        """
        if self.holds(bundle):
            return self.address
        resolving = self._resolving.get((bundle, take))
        if resolving is None:
            resolving = asyncio.get_running_loop().create_task(
                self._resolve(bundle, take), name=f"find the owner of {bundle}"
            )
            self._resolving[bundle, take] = resolving
            resolving.add_done_callback(lambda task: self._resolved((bundle, take), task))
        with self._parking:
            return await asyncio.shield(resolving)

    def _resolved(self, key: tuple[Bundle, bool], task: asyncio.Task[BrokerAddress]) -> None:
        del self._resolving[key]
        if not task.cancelled():
            task.exception()  # Told to those that wait; all of them may have given up.

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

    # Finding out.

    async def _resolve(self, bundle: Bundle, take: bool) -> BrokerAddress:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._wait_s
        while True:
            holder: BrokerAddress | None = None
            trouble = f"bundle {bundle} has no owner that answers"
            try:
                record = await self._metadata.get(_path(bundle))
                if record is None:
                    return await self._take_or_send(bundle, take)
                holder = BrokerAddress.decode(record.value)
                if await self._stands(bundle, record, holder):
                    return holder
            except LockTaken:
                trouble = f"bundle {bundle} is changing hands"
            except StoreUnavailable as error:
                trouble = str(error)
            if loop.time() >= deadline:
                if holder is not None and holder != self.address:
                    self._neighbours.trust(holder)
                    return holder
                raise MetadataFailed(f"{trouble}: look it up again")
            await self._until_changed(bundle)

    async def _take_or_send(self, bundle: Bundle, take: bool) -> BrokerAddress:
        """A bundle that nobody owns: take it, or name the broker that should.

        Raises:
            LockTaken: another was faster.
        """
        given = self._given.get(bundle)
        if given is not None:
            if asyncio.get_running_loop().time() < given[1] and await self._neighbours.answers(given[0]):
                return given[0]
            self._given.pop(bundle, None)
        if not take or self.closing:
            for candidate in self._neighbours.candidates(bundle):
                if candidate == self.address:
                    break
                if await self._neighbours.answers(candidate):
                    return candidate
        await self._own(bundle)
        return self.address

    async def _stands(self, bundle: Bundle, record: Versioned, holder: BrokerAddress) -> bool:
        """Whether what the lock says can be told to clients."""
        if holder == self.address:
            if bundle in self._leaving:
                return False  # Whoever takes it next cannot yet: sent there now, clients would be sent back.
            if record.session == self._metadata.session_id:
                await self._own(bundle)  # Taken by a request whose answer was lost.
                return True
            return False  # By our session before this one: it goes in a moment.
        if (holder.broker_id, holder.broker_url) == (self.address.broker_id, self.address.broker_url):
            # We listen where it did: it has ended, and only its session has not yet.
            try:
                await self._metadata.delete(_path(bundle), expected_version=record.version)
            except (NotFound, BadVersion) as error:
                log.info("bundle.gone_before_taken", bundle=str(bundle), reason=str(error))
            return False
        expected = self._expected.get(bundle)
        if expected is not None and asyncio.get_running_loop().time() < expected:
            return False
        return await self._neighbours.answers(holder)

    async def _until_changed(self, bundle: Bundle) -> None:
        """Wait for news of the lock; not for long, since what else counts does not come as news."""
        changed = asyncio.Event()
        watch = self._metadata.watch(_path(bundle), lambda _: changed.set())
        try:
            async with asyncio.timeout(_LOOK_AGAIN_S):
                await changed.wait()
        except TimeoutError:
            return
        finally:
            watch.cancel()

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
            self._metadata, _path(bundle), self.address.encode(), on_lost=lambda: self._lost(bundle)
        )
        self._locks[bundle] = lock
        self._expected.pop(bundle, None)
        self._given.pop(bundle, None)
        log.info("bundle.acquired", bundle=str(bundle), epoch=lock.epoch)
        return lock

    def _lost(self, bundle: Bundle) -> None:
        self._locks.pop(bundle, None)
        log.warning("bundle.lost", bundle=str(bundle))
        self._on_lost(bundle)

    def begin_release(self, bundle: Bundle, to: BrokerAddress | None = None) -> None:
        """Load nothing of a bundle any more: it is unloaded and released next, and then `to` takes it."""
        if bundle in self._locks:
            self._leaving.add(bundle)
            if to is not None:
                self._given[bundle] = (to, asyncio.get_running_loop().time() + _GIVEN_FOR_S)

    async def release(self, bundle: Bundle) -> None:
        """Give a bundle back. Its topics must be unloaded already."""
        try:
            lock = self._locks.pop(bundle, None)
            if lock is not None:
                await lock.release()
                log.info("bundle.released", bundle=str(bundle), epoch=lock.epoch)
        finally:
            self._leaving.discard(bundle)

    async def release_all(self) -> None:
        """Give everything back, and take nothing more."""
        self.closing = True
        for bundle in list(self._locks):
            await self.release(bundle)


def _path(bundle: Bundle) -> str:
    return f"{OWNERS_PATH}/{bundle}"
