"""The limits of a broker as a whole, and of the groups of namespaces it serves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar.broker.rates.publish_limit import PublishLimit
from magnetar.broker.rates.rate import Rate, TwinBucket
from magnetar.broker.rates.resource_groups import ResourceGroups

if TYPE_CHECKING:
    from magnetar.broker.context import TaskOwner
    from magnetar.broker.settings import BrokerSettings
    from magnetar.environment.clock import Clock
    from magnetar.policies.resources import Resources


class BrokerRates:
    """What all topics share."""

    __slots__ = ("dispatch", "groups", "publish")

    def __init__(
        self, settings: BrokerSettings, resources: Resources, clock: Clock, tasks: TaskOwner
    ) -> None:
        came_in = Rate(settings.publish_rate_messages, settings.publish_rate_bytes)
        goes_out = Rate(settings.dispatch_rate_messages, settings.dispatch_rate_bytes)
        self.publish = PublishLimit(clock, came_in) if came_in.limited else None
        self.dispatch = TwinBucket(goes_out, clock.monotonic()) if goes_out.limited else None
        self.groups = ResourceGroups(resources, clock, tasks)
