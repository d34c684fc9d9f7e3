"""The limits that hold for one topic: its own, its group's and the broker's.

System topics are exempt. Where no limit holds, `publish` is empty and `gate` gives None.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from magnetar.broker.errors import NotAllowed
from magnetar.broker.rates.dispatch_gate import DispatchGate
from magnetar.broker.rates.dispatch_limit import DispatchLimit, rate_of
from magnetar.broker.rates.publish_limit import PublishLimit
from magnetar.broker.rates.rate import Rate
from magnetar.broker.rates.subscribe_limit import ConsumerIdentity, SubscribeLimit

if TYPE_CHECKING:
    from magnetar.broker.peer import Peer
    from magnetar.broker.rates.rate import TwinBucket
    from magnetar.broker.rates.resource_groups import GroupLimits
    from magnetar.broker.subscription import Subscription
    from magnetar.broker.topic import Topic
    from magnetar.policies.rates import DispatchRate, PublishRate, SubscribeRate


class TopicRates:
    """Made with its topic, and told when policies change."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._own_publish: PublishLimit | None = None
        self._own_dispatch: DispatchLimit | None = None
        self._subscribe: SubscribeLimit | None = None
        self._subscribe_said: SubscribeRate | None = None
        self._group: GroupLimits | None = None
        self.publish: tuple[PublishLimit, ...] = ()
        """The limits on what comes in."""
        self.dispatch: tuple[TwinBucket, ...] = ()
        """The limits that all subscriptions of the topic share."""
        self._follow()

    async def follow(self) -> None:
        """Policies are known, or have changed."""
        topic = self._topic
        group = topic.policies.resource_group
        if group is None or topic.name.is_system:
            self._group = None
        else:
            self._group = await topic.context.rates.groups.limits(group)
        self._follow()

    def _follow(self) -> None:
        topic, policies, shared = self._topic, self._topic.policies, self._topic.context.rates
        if topic.name.is_system:
            return
        self._follow_publish(policies.publish_rate)
        self._follow_dispatch(policies.dispatch_rate)
        self._follow_subscribe(policies.subscribe_rate)
        group = self._group
        came_in = (self._own_publish, group.publish if group is not None else None, shared.publish)
        goes_out = (self._own_dispatch, group.dispatch if group is not None else None, shared.dispatch)
        self.publish = tuple(limit for limit in came_in if limit is not None)
        self.dispatch = tuple(limit for limit in goes_out if limit is not None)

    def _follow_publish(self, said: PublishRate) -> None:
        rate = Rate(max(0, said.publish_throttling_rate_in_msg), max(0, said.publish_throttling_rate_in_byte))
        if self._own_publish is not None:
            self._own_publish.set_rate(rate)  # Also where it is no limit any more: who waits goes on.
        elif rate.limited:
            self._own_publish = PublishLimit(self._topic.clock, rate)
        if not rate.limited:
            self._own_publish = None

    def _follow_dispatch(self, said: DispatchRate) -> None:
        self._own_dispatch = self._kept(self._own_dispatch, said)

    def _kept(self, limit: DispatchLimit | None, said: DispatchRate) -> DispatchLimit | None:
        now = self._topic.clock.monotonic()
        if not rate_of(said).limited:
            return None
        if limit is None:
            return DispatchLimit(said, now)
        limit.say(said, now)
        return limit

    def _follow_subscribe(self, said: SubscribeRate) -> None:
        if said == self._subscribe_said:
            return  # What was counted counts on.
        self._subscribe_said = said
        times = said.subscribe_throttling_rate_per_consumer
        now = self._topic.clock.monotonic()
        self._subscribe = (
            SubscribeLimit(times, max(1, said.rate_period_in_second), now) if times > 0 else None
        )

    # What clients do.

    def came_in(self, peer: Peer, messages: int, size: int) -> None:
        """A message came by this connection: it may have to wait before it brings more."""
        for limit in self.publish:
            limit.took(peer, messages, size)

    def check_subscribe(self, address: str, name: str, identifier: int) -> None:
        """
        Raises:
            NotAllowed: this consumer subscribes too often.
        """
        if self._subscribe is None:
            return
        who = ConsumerIdentity(address.rpartition(":")[0], name, identifier)
        if not self._subscribe.allows(who, self._topic.clock.monotonic()):
            raise NotAllowed(
                f"consumer {name!r} subscribes to {self._topic.name} more often than the subscribe rate allows: "
                f"retry later"
            )

    # What subscriptions ask.

    def gate(self, subscription: Subscription, before: DispatchGate | None = None) -> DispatchGate | None:
        """The limits of one subscription, None where there are none. What the gate `before` is owed stays owed."""
        if before is not None:
            before.close()
        if self._topic.name.is_system:
            return None
        policies = self._topic.policies
        said = policies.subscription_dispatch_rates.get(
            subscription.name, policies.subscription_dispatch_rate
        )
        own = self._kept(before.own if before is not None else None, said)
        if own is None and not self.dispatch:
            return None
        return DispatchGate(
            self._topic.clock,
            own,
            self.dispatch,
            subscription.wake,
            by_entry=self._topic.settings.dispatch_rate_by_entry,
        )

    # Now and then.

    def tick(self, gates: Iterable[DispatchGate | None]) -> None:
        """Tell limits that follow what comes in how much that was."""
        owns = [each.own for each in gates if each is not None]
        flow = self._topic.flow_in
        for limit in (self._own_dispatch, *owns):
            if limit is not None and limit.relative:
                now = self._topic.clock.monotonic()
                limit.came_in(flow.messages.rate, flow.bytes.rate, now)

    @property
    def publish_times_limited(self) -> int:
        """How often a connection was held back for the topic's own limit."""
        return 0 if self._own_publish is None else self._own_publish.times_limited

    def close(self) -> None:
        """Hold nobody back any more. Shared limits stay."""
        if self._own_publish is not None:
            self._own_publish.close()
