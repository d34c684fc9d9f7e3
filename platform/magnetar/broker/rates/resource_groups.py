"""Limits that the namespaces of a group share on this broker. Each broker keeps to them for the topics it serves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar.broker.rates.publish_limit import PublishLimit
from magnetar.broker.rates.rate import Rate, TwinBucket
from magnetar.policies import paths
from magnetar.policies.resource_groups import ResourceGroup

if TYPE_CHECKING:
    from magnetar.broker.context import TaskOwner
    from magnetar.environment.clock import Clock
    from magnetar.policies.resources import Resources


class GroupLimits:
    """The limits of one group."""

    __slots__ = ("dispatch", "publish")

    def __init__(self, clock: Clock) -> None:
        self.publish = PublishLimit(clock, Rate())
        self.dispatch = TwinBucket(Rate(), clock.monotonic())


class ResourceGroups:
    """The groups whose limits some topic here keeps to. A group is followed when what is said of it changes."""

    def __init__(self, resources: Resources, clock: Clock, tasks: TaskOwner) -> None:
        self._resources = resources
        self._clock = clock
        self._tasks = tasks
        self._groups: dict[str, GroupLimits] = {}
        self._known: set[str] = set()
        """The groups of which it was read what is said of them."""
        resources.records.on_change(self._changed)

    async def limits(self, group: str) -> GroupLimits:
        """The limits of a group; none where it does not exist."""
        limits = self._groups.get(group)
        if limits is None:
            limits = self._groups[group] = GroupLimits(self._clock)
        if group not in self._known:
            await self._follow(group)
        return limits

    async def _follow(self, group: str) -> None:
        said = await self._resources.records.get(f"{paths.RESOURCE_GROUPS}/{group}", ResourceGroup)
        said = said or ResourceGroup()
        limits = self._groups[group]
        limits.publish.set_rate(_rate(said.publish_rate_in_msgs, said.publish_rate_in_bytes))
        limits.dispatch.set_rate(
            _rate(said.dispatch_rate_in_msgs, said.dispatch_rate_in_bytes), self._clock.monotonic()
        )
        self._known.add(group)

    def _changed(self, path: str) -> None:
        prefix = f"{paths.RESOURCE_GROUPS}/"
        groups = list(self._groups) if path == "" else [path.removeprefix(prefix)]
        for group in groups:
            if group in self._groups:
                self._tasks.start(self._follow(group), f"follow resource group {group}")


def _rate(messages: int | None, size: int | None) -> Rate:
    return Rate(max(0, messages or 0), max(0, size or 0))
