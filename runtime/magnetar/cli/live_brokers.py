"""The brokers that live now, as they have registered themselves: for a worker that runs beside them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from magnetar.broker.cluster.members import BROKERS_PATH
from magnetar.broker.cluster.report import BrokerReport
from magnetar.broker.errors import MetadataFailed
from magnetar.environment.logs import get_logger
from magnetar.metadata.errors import MetadataError
from magnetar.metadata.paths import join

if TYPE_CHECKING:
    from magnetar.metadata.store import MetadataStore, Notification

log = get_logger("magnetar.cli")


@dataclass(frozen=True, slots=True)
class LiveBroker:
    service_url: str
    """`pulsar://host:port`."""
    web_url: str
    """`http://host:port`."""


class LiveBrokers:
    """Follows the registrations. While the store does not answer, those known last are taken to live."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._known: tuple[LiveBroker, ...] = ()
        self._stale = True
        self._changed = asyncio.Event()
        self._watch = metadata.watch(BROKERS_PATH, self._on_change)

    async def now(self) -> tuple[LiveBroker, ...]:
        """Those that live, in an order that stays the same while they do."""
        if self._stale:
            self._stale = False
            try:
                self._known = await self._read()
            except (MetadataError, MetadataFailed) as error:
                self._stale = True
                log.warning("brokers.not_listed", reason=str(error))
        return self._known

    async def at_least_one(self) -> tuple[LiveBroker, ...]:
        """As `now`, once there is any."""
        while not (found := await self.now()):
            self._changed.clear()
            try:
                async with asyncio.timeout(1.0):  # Or the store has not answered: ask again.
                    await self._changed.wait()
            except TimeoutError:
                continue
        return found

    def close(self) -> None:
        self._watch.cancel()

    async def _read(self) -> tuple[LiveBroker, ...]:
        found = []
        for name in await self._metadata.children(BROKERS_PATH):
            record = await self._metadata.get(join(BROKERS_PATH, name))
            if record is None:
                continue
            report = BrokerReport.decode(record.value)
            if not report.draining:
                found.append(LiveBroker(report.address.broker_url, report.address.web_url))
        return tuple(found)

    def _on_change(self, notification: Notification) -> None:
        self._stale = True
        self._changed.set()
