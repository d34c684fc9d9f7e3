"""What every route has at hand."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from magnetar.admin.errors import Elsewhere
from magnetar.admin.settings import AdminSettings
from magnetar.environment.logs import get_logger
from magnetar.managed_ledger.errors import StorageUnavailable

if TYPE_CHECKING:
    from magnetar.broker.broker import Broker
    from magnetar.broker.topic import Topic
    from magnetar.metrics.registry import MetricsRegistry
    from magnetar.naming import TopicName
    from magnetar.policies.resources import Resources
    from magnetar.security.authorizer import Authorizer

log = get_logger("magnetar.admin")

Identify: TypeAlias = Callable[[Mapping[str, str]], Awaitable[str | None]]
"""Tells from a request's headers who sends it. Raises Unauthenticated."""


async def anonymous(headers: Mapping[str, str]) -> str | None:
    """Everybody is nobody: where authentication is off."""
    return None


@dataclass(slots=True, kw_only=True)
class Admin:
    """The rooms below, and how the web side behaves."""

    broker: Broker
    resources: Resources
    authorizer: Authorizer
    metrics: MetricsRegistry
    settings: AdminSettings = field(default_factory=AdminSettings)
    identify: Identify = anonymous
    runtime_configuration: Mapping[str, str] = field(default_factory=dict)
    """What GET brokers/configuration/runtime shows beside the broker's own settings."""

    shutdown: Callable[[], None] | None = None
    """Lets the process end in good order; None where it is nobody's to end."""

    creating: set[TopicName] = field(default_factory=set)
    """Topics that a request makes just now: a second request for the same is told that it exists."""

    async def require_here(self, name: TopicName) -> None:
        """
        Raises:
            Elsewhere: another broker serves the topic.
        """
        owner = await self.broker.lookup(name)
        if not owner.here:
            raise Elsewhere(owner.http_url)

    async def topic(self, name: TopicName, *, create: bool = False) -> Topic:
        """A topic of this broker, loaded.

        Raises:
            Elsewhere: another broker serves it.
            TopicNotFound, and what else keeps it from being loaded.
        """
        await self.require_here(name)
        return await self.broker.topics.get(name, create=create)

    async def delete_topic(self, name: TopicName, *, force: bool = False) -> None:
        """Delete a topic. One that cannot be loaded, for want of bookies say, goes by force all the same.

        Raises:
            Elsewhere: another broker serves it.
            TopicNotFound, TopicBusy
        """
        await self.require_here(name)
        try:
            await self.broker.topics.delete(name, force=force)
        except StorageUnavailable as error:
            if not force:
                raise
            log.warning("topic.deleted_unloaded", topic=str(name), reason=str(error))
            await self.broker.context.ledgers.delete(name.managed_ledger_name)
