"""What becomes of the bundles another broker leaves behind, and of those it gives to us.

Every broker that lives computes the same division of them, and takes its share; where they see different brokers
two may try for one bundle, and the lock decides. What nobody has taken after a while anybody takes. The topics
that had clients are opened at once, so that clients find them open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from magnetar.broker.cluster.report import BrokerReport, least_loaded, successors
from magnetar.broker.errors import BrokerError, ServiceNotReady
from magnetar.broker.namespaces.bundles import Bundle
from magnetar.environment.logs import get_logger
from magnetar.metadata.errors import MetadataError

if TYPE_CHECKING:
    from magnetar.broker.cluster.members import Members
    from magnetar.broker.context import TaskOwner
    from magnetar.broker.ownership import BrokerAddress, Ownership

log = get_logger("magnetar.broker")

_OPENED_AT_ONCE: Final = 64
_LEFT_FOR_S: Final = 1.0
"""How long a bundle is left to the broker it was meant for."""
_HANDED_OVER_WITHIN_S: Final = 15.0


class Takeover:
    """Decides, when another broker changes, what this one takes."""

    def __init__(
        self,
        members: Callable[[], Members],
        ownership: Callable[[], Ownership],
        open_topic: Callable[[str], Awaitable[object]],
        tasks: TaskOwner,
    ) -> None:
        self._members = members
        self._ownership = ownership
        self._open_topic = open_topic
        self._tasks = tasks
        self._opening = asyncio.Semaphore(_OPENED_AT_ONCE)
        self._meant_for: dict[str, BrokerReport] = {}

    @property
    def _here(self) -> BrokerAddress:
        return self._ownership().address

    def changed(self, before: BrokerReport | None, now: BrokerReport | None) -> None:
        """Another broker has changed: see `Members`."""
        if self._ownership().closing:
            return
        if now is None and before is not None:
            self._divide(before.bundles)
        elif (
            now is not None and before is not None
        ):  # What it gave away before we knew it was not for this life.
            for bundle, handover in now.handovers.items():
                if handover.to == self._here.broker_id and before.handovers.get(bundle) != handover:
                    self._ownership().expect(Bundle.parse(bundle), _HANDED_OVER_WITHIN_S)
                    self._tasks.start(self._take(bundle, handover.topics), f"take over {bundle}")

    def candidates(self, bundle: Bundle) -> Sequence[BrokerAddress]:
        """Who should take a bundle that nobody owns, the best first."""
        meant_for = self._meant_for.get(str(bundle))
        ranked = [report.address for report in least_loaded(self._members().all())]
        return ranked if meant_for is None else [meant_for.address, *ranked]

    def _divide(self, orphans: Mapping[str, Sequence[str]]) -> None:
        if not orphans:
            return
        division = successors(orphans, self._members().all())
        mine = [bundle for bundle, taker in division.items() if taker.address == self._here]
        log.info("bundles.orphaned", bundles=len(orphans), ours=len(mine))
        for bundle in mine:
            self._tasks.start(self._take(bundle, orphans[bundle]), f"take over {bundle}")
        left = {bundle: topics for bundle, topics in orphans.items() if bundle not in mine}
        for bundle in left:
            self._meant_for[bundle] = division[bundle]
        if left:
            self._tasks.start(self._take_what_is_left(left), "take what nobody has taken")

    async def _take_what_is_left(self, left: Mapping[str, Sequence[str]]) -> None:
        ids = sorted(report.broker_id for report in self._members().all())
        turn = 1 + ids.index(self._here.broker_id) / 4  # One after the other, not all at once.
        await asyncio.sleep(_LEFT_FOR_S * turn)
        for bundle in left:
            self._meant_for.pop(bundle, None)
        await asyncio.gather(*(self._take(bundle, topics) for bundle, topics in left.items()))

    async def _take(self, bundle: str, topics: Sequence[str]) -> None:
        try:
            owned = await self._ownership().require(Bundle.parse(bundle))
        except ServiceNotReady as error:  # Another has it, or we are shutting down.
            log.info("bundle.left_to_others", bundle=bundle, reason=str(error))
            return
        except (BrokerError, MetadataError) as error:
            log.warning("bundle.not_taken", bundle=bundle, reason=str(error))
            return
        log.info("bundle.taken_over", bundle=bundle, epoch=owned.epoch, topics=len(topics))
        await self.open_all(topics)

    async def open_all(self, topics: Sequence[str]) -> None:
        """Open topics that have clients somewhere, before those come."""
        await asyncio.gather(*(self._open(topic) for topic in topics))

    async def _open(self, topic: str) -> None:
        async with self._opening:
            try:
                await self._open_topic(topic)
            except Exception as error:  # Whoever asks for it next is told; here nobody waits.
                log.warning("topic.not_opened_ahead", topic=topic, reason=f"{type(error).__name__}: {error}")
