"""This broker among the others: what it tells of itself, whom it trusts to live, to whom it gives its bundles."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from magnetar.broker.cluster.members import Members
from magnetar.broker.cluster.probing import Probes
from magnetar.broker.cluster.report import BrokerReport, Handover, Load, successors
from magnetar.broker.cluster.takeover import Takeover
from magnetar.environment.logs import get_logger
from magnetar.metadata.errors import MetadataError
from magnetar.naming import TopicName

if TYPE_CHECKING:
    from magnetar.broker.broker import Broker
    from magnetar.broker.namespaces.bundles import Bundle
    from magnetar.broker.ownership import BrokerAddress

log = get_logger("magnetar.broker")

_HANDOVER_KEPT_S: Final = 30.0
_TRUSTED_S: Final = 60.0
_TOPICS_PER_TURN: Final = 500


class Neighbourhood:
    """See `Neighbours` for what `Ownership` asks of it."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        clock = broker.context.clock
        self._probes = Probes(clock.monotonic)
        self._handovers: dict[Bundle, tuple[Handover, float]] = {}
        self._load = Load()
        self._busy: Mapping[Bundle, tuple[str, ...]] = {}
        """The stored topics that had clients at the last look."""
        self._measured = (clock.monotonic(), time.process_time())
        self._trusted: dict[BrokerAddress, float] = {}
        self._draining = False
        self._joined = False
        self._reporting: asyncio.Task[None] | None = None
        self.takeover = Takeover(
            lambda: self.members, lambda: broker.ownership, self._open_topic, broker.context.tasks
        )
        self.members = self._new_members()

    def _new_members(self) -> Members:
        return Members(self._broker.context.metadata, self.report, self._changed)

    # Among others.

    async def join(self) -> None:
        """Register, and begin to tell how this broker fares. Its addresses are known."""
        self.members = self._new_members()
        self._joined = True
        await self.members.join()
        self._reporting = asyncio.get_running_loop().create_task(
            self._keep_reporting(), name="report the load"
        )

    async def leave(self) -> None:
        """Be there no longer."""
        if self._joined:
            if self._reporting is not None:
                self._reporting.cancel()
                await asyncio.wait((self._reporting,))
            await self.members.leave()
        self._probes.close()

    def candidates(self, bundle: Bundle) -> Sequence[BrokerAddress]:
        return self.takeover.candidates(bundle) if self._joined else ()

    async def answers(self, address: BrokerAddress) -> bool:
        if address == self._broker.ownership.address:
            return True
        trusted_until = self._trusted.get(address, 0.0)
        if trusted_until > self._broker.context.clock.monotonic():
            return True
        return await self._probes.answers(address.broker_url)

    def trust(self, address: BrokerAddress) -> None:
        """Send clients to a broker that we cannot reach, for a while, or until its session ends."""
        self._trusted[address] = self._broker.context.clock.monotonic() + _TRUSTED_S

    def _changed(self, before: BrokerReport | None, now: BrokerReport | None) -> None:
        if now is None and before is not None:
            self._trusted.pop(before.address, None)
            self._probes.forget(before.address.broker_url)
        self.takeover.changed(before, now)

    async def _open_topic(self, name: str) -> None:
        await self._broker.topics.get(TopicName.parse(name), create=False)

    # Reports.

    def report(self) -> BrokerReport:
        """This broker as it is now."""
        now = self._broker.context.clock.monotonic()
        self._handovers = {
            bundle: each for bundle, each in self._handovers.items() if now - each[1] < _HANDOVER_KEPT_S
        }
        return BrokerReport(
            self._broker.ownership.address,
            self._load,
            {str(bundle): self._busy.get(bundle, ()) for bundle in self._broker.ownership.owned},
            {str(bundle): handover for bundle, (handover, _) in self._handovers.items()},
            self._draining,
        )

    async def _keep_reporting(self) -> None:
        while True:
            await asyncio.sleep(self._broker.settings.load_report_interval_s)
            if not self.members.others:
                continue  # Nobody listens; whoever comes is told at the next look.
            await self._measure()
            try:
                await self.members.publish_news(load_too=True)
            except MetadataError as error:
                log.info("broker.load_not_told", reason=str(error))

    async def _measure(self) -> None:
        """Look at all topics, some at a time: there may be very many, and others want the loop too."""
        busy: dict[Bundle, list[str]] = {}
        messages = size = 0.0
        topics = self._broker.topics.with_bundles()
        for number, (topic, bundle) in enumerate(topics, 1):
            messages += topic.flow_in.messages.rate + topic.flow_out.messages.rate
            size += topic.flow_in.bytes.rate + topic.flow_out.bytes.rate
            if topic.name.persistent and topic.has_clients:
                busy.setdefault(bundle, []).append(str(topic.name))
            if number % _TOPICS_PER_TURN == 0:
                await asyncio.sleep(0)
        self._busy = {bundle: tuple(names) for bundle, names in busy.items()}
        now, processor = self._broker.context.clock.monotonic(), time.process_time()
        (then, processor_then), self._measured = self._measured, (now, processor)
        cpu = min(1.0, (processor - processor_then) / max(now - then, 1e-3))
        self._load = Load(cpu, messages, size, len(topics))

    # Giving away.

    async def hand_over(self, bundles: Mapping[Bundle, BrokerReport | None]) -> None:
        """Give bundles to other brokers, or back to nobody in particular, each as soon as its topics are stored.

        Clients are told where to go, and wait there until the bundle has come.
        """
        await self._measure()
        busy = self._busy
        now = self._broker.context.clock.monotonic()
        ownership = self._broker.ownership
        for bundle, to in bundles.items():
            ownership.begin_release(bundle, None if to is None else to.address)
            if to is not None:
                epoch = ownership.owned.get(bundle, 0)
                self._handovers[bundle] = (Handover(to.broker_id, busy.get(bundle, ()), epoch), now)
        if any(bundles.values()):
            try:
                await self.members.publish()
            except MetadataError as error:
                log.warning("bundles.not_announced", bundles=len(bundles), reason=str(error))
        await asyncio.gather(*(self._give(bundle, to) for bundle, to in bundles.items()))

    async def _give(self, bundle: Bundle, to: BrokerReport | None) -> None:
        try:
            await self._broker.topics.unload_bundle(bundle, "" if to is None else to.address.broker_url)
        finally:
            try:
                await self._broker.ownership.release(bundle)
            except MetadataError as error:
                # It goes with our session; the other bundles must not wait for that.
                log.warning("bundle.not_released", bundle=str(bundle), reason=str(error))
        if to is not None:
            log.info("bundle.handed_over", bundle=str(bundle), to=to.broker_id)

    async def drain(self) -> None:
        """Give everything to those that live on. Nothing happens where there is nobody."""
        self._draining = True
        others = [
            report
            for report in self.members.others
            if not report.draining and await self.answers(report.address)
        ]
        if not others or not self._joined:
            return
        await self._measure()
        busy = self._busy
        owned = {str(bundle): bundle for bundle in self._broker.ownership.owned}
        plan = successors({text: busy.get(bundle, ()) for text, bundle in owned.items()}, others)
        await self.hand_over({owned[text]: to for text, to in plan.items()})
