"""/admin/v2/{domain}/{tenant}/{namespace}/{topic}/…: what is said of one topic, all by one table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from magnetar.admin import bodies, enforcement
from magnetar.admin.errors import Refused
from magnetar.admin.routes.targets import ONE, require_existing
from magnetar.admin.routing import Guards, Route
from magnetar.policies import checks
from magnetar.policies.creation import AutoSubscriptionCreation
from magnetar.policies.delivery import DelayedDelivery, EntryFilters
from magnetar.policies.effective import EffectivePolicies
from magnetar.policies.errors import PreconditionFailed
from magnetar.policies.model import PolicyModel
from magnetar.policies.namespace import Policies, SubscriptionType
from magnetar.policies.rates import DispatchRate, PublishRate, SubscribeRate
from magnetar.policies.schemas import SchemaCompatibilityStrategy
from magnetar.policies.storage import (
    MEBIBYTE,
    InactiveTopicPolicies,
    OffloadPolicies,
    PersistencePolicies,
    RetentionPolicies,
)
from magnetar.policies.topic import SubscriptionPolicies, TopicPolicies
from magnetar.security.authorizer import Action

if TYPE_CHECKING:
    from magnetar.admin.answers import Result
    from magnetar.admin.call import Call

Check = Callable[["Call", Any, TopicPolicies, Policies], Any]

_READ: Final = (Guards.TOPIC, Action.READ_POLICY)
_WRITE: Final = (Guards.TOPIC, Action.WRITE_POLICY)


def _as_is(call: Call, value: Any, said: TopicPolicies, namespace: Policies) -> Any:
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A policy of a topic that can be read, set and taken back."""

    path: str
    field: str
    """Of `TopicPolicies`."""
    read: Callable[[Any], Any]
    """Makes a value of the body's JSON. Raises BadValue."""
    applied: Callable[[EffectivePolicies], Any]
    """What holds, as the answer to `applied=true`."""
    check: Check = _as_is
    verbs: str = "GET POST DELETE"
    unset: Any = None
    bare: Any = None
    """What is meant by setting it without a body; None: to take it back."""
    told_as: str = ""
    """The name that `enforcement` knows it by; its path if empty."""
    from_query: str = ""
    """The query's name for the value, where it is not in the body."""
    warn: Callable[[Any], list[str]] | None = None
    """What whoever sets such a value should know."""
    may_be: Callable[[Call, Any], None] | None = None
    """Raises where this broker cannot do as is said."""
    body: type[PolicyModel] | None = None
    told_unset: Result = None
    """The answer where nothing is said."""

    def routes(self) -> Iterator[Route]:
        handlers = {"GET": self._handler(self.get), "DELETE": self._handler(self.remove)}
        for verb in self.verbs.split():
            handler = handlers.get(verb) or self._handler(self.set)
            yield Route(
                verb,
                f"{ONE}/{self.path}",
                handler,
                *(_READ if verb == "GET" else _WRITE),
                body=self.body if verb in ("POST", "PUT") else None,
                query=("applied", "isGlobal") if verb == "GET" else ("isGlobal",),
            )

    def _handler(self, act: Callable[[Call], Awaitable[Result]]) -> Callable[[Call], Awaitable[Result]]:
        noted = enforcement.note(self.told_as or self.path)

        async def handle(call: Call) -> Result:
            call.notes.update(noted)
            await require_policies(call)
            return await act(call)

        handle.__doc__ = f"{act.__doc__} `{self.path}`."
        return handle

    async def get(self, call: Call) -> Result:
        """What is said of"""
        if call.flag("applied"):
            told: Result = self.applied(await call.admin.resources.effective(call.topic))
            return told
        said = await call.admin.resources.topic_policies(call.topic, everywhere=call.flag("isGlobal"))
        value = getattr(said, self.field)
        return self.told_unset if value == self.unset else value

    async def set(self, call: Call) -> None:
        """Say something of"""
        said = call.query.get(self.from_query) if self.from_query else None
        if said is None:
            said = self.bare if call.json is None else call.json
        if said is None:
            await self.remove(call)
            return
        value = self.read(said)
        if self.may_be is not None:
            self.may_be(call, value)
        refused = enforcement.REFUSED.get(self.told_as or self.path)
        if refused is not None and value != self.unset:
            raise Refused(501, refused)
        namespace = await call.policies()
        await change(call, lambda own: own.changed(**{self.field: self.check(call, value, own, namespace)}))
        if self.warn is not None:
            call.warn(self.warn(value))

    async def remove(self, call: Call) -> None:
        """Say nothing any more of"""
        await change(call, lambda own: own.changed(**{self.field: self.unset}))


async def require_policies(call: Call) -> None:
    """Raises Refused: such topics have no policies; NotFound, TopicNotFound."""
    if not call.topic.persistent:
        raise Refused(405, "Topic level policies are kept for persistent topics only")
    await require_existing(call)


async def change(call: Call, apply: Callable[[TopicPolicies], TopicPolicies]) -> None:
    """Change what is said of the topic, here or (`isGlobal`) on every cluster."""
    await call.admin.resources.update_topic_policies(call.topic, apply, everywhere=call.flag("isGlobal"))


# Checks.


def _not_negative(name: str) -> Check:
    return lambda call, value, said, namespace: checks.check_not_negative(name, value)


def _message_size(call: Call, value: int, said: TopicPolicies, namespace: Policies) -> int:
    limit = call.admin.broker.settings.max_message_bytes
    if not 0 <= value <= limit:
        raise PreconditionFailed(
            f"topic-level maxMessageSize must be greater than or equal to 0 and must be smaller than that in "
            f"the broker-level ({limit})"
        )
    return value


def _retention(
    call: Call, value: RetentionPolicies, said: TopicPolicies, namespace: Policies
) -> RetentionPolicies:
    return checks.check_retention(value, namespace.backlog_quota_map | said.backlog_quota_map)


def _persistence(
    call: Call, value: PersistencePolicies, said: TopicPolicies, namespace: Policies
) -> PersistencePolicies:
    return checks.check_persistence(value)


# What holds, in the shape it is set in.


def _applied_retention(holds: EffectivePolicies) -> RetentionPolicies:
    time_s, size = holds.retention_time_s, holds.retention_size_bytes
    return RetentionPolicies.read(
        {
            "retentionTimeInMinutes": time_s // 60 if time_s > 0 else time_s,
            "retentionSizeInMB": size // MEBIBYTE if size > 0 else size,
        }
    )


def _applied_persistence(holds: EffectivePolicies) -> PersistencePolicies:
    return PersistencePolicies(
        bookkeeper_ensemble=holds.ensemble_size,
        bookkeeper_write_quorum=holds.write_quorum,
        bookkeeper_ack_quorum=holds.ack_quorum,
        managed_ledger_max_mark_delete_rate=holds.mark_delete_rate,
    )


def _applied_inactive(holds: EffectivePolicies) -> InactiveTopicPolicies:
    return InactiveTopicPolicies(
        inactive_topic_delete_mode=holds.inactive_topic_delete_mode,
        max_inactive_duration_seconds=holds.inactive_topic_s,
        delete_while_inactive=holds.delete_inactive_topics,
    )


def _limit(path: str, field: str, effective: str, told_as: str) -> Policy:
    return Policy(
        path=path,
        field=field,
        read=bodies.small_integer,
        check=_not_negative(path),
        applied=lambda holds: getattr(holds, effective),
        told_as=told_as,
    )


def _rate(path: str, field: str, kind: type[PolicyModel]) -> Policy:
    return Policy(
        path=path, field=field, read=kind.read, applied=lambda holds: getattr(holds, field), body=kind
    )


POLICIES: Final = (
    Policy(
        path="messageTTL",
        field="message_ttl_in_seconds",
        read=bodies.small_integer,
        check=_not_negative("messageTTL"),
        applied=lambda holds: holds.message_ttl_s,
        from_query="messageTTL",
    ),
    Policy(
        path="retention",
        field="retention_policies",
        read=RetentionPolicies.read,
        check=_retention,
        applied=_applied_retention,
        body=RetentionPolicies,
    ),
    Policy(
        path="persistence",
        field="persistence",
        read=PersistencePolicies.read,
        check=_persistence,
        warn=checks.persistence_warnings,
        applied=_applied_persistence,
        body=PersistencePolicies,
    ),
    _limit("maxProducers", "max_producer_per_topic", "max_producers_per_topic", "maxProducersPerTopic"),
    _limit("maxConsumers", "max_consumer_per_topic", "max_consumers_per_topic", "maxConsumersPerTopic"),
    _limit(
        "maxConsumersPerSubscription",
        "max_consumers_per_subscription",
        "max_consumers_per_subscription",
        "maxConsumersPerSubscription",
    ),
    _limit(
        "maxSubscriptionsPerTopic",
        "max_subscriptions_per_topic",
        "max_subscriptions_per_topic",
        "maxSubscriptionsPerTopic",
    ),
    _limit(
        "maxUnackedMessagesOnConsumer",
        "max_unacked_messages_on_consumer",
        "max_unacked_messages_per_consumer",
        "maxUnackedMessagesPerConsumer",
    ),
    _limit(
        "maxUnackedMessagesOnSubscription",
        "max_unacked_messages_on_subscription",
        "max_unacked_messages_per_subscription",
        "maxUnackedMessagesPerSubscription",
    ),
    Policy(
        path="maxMessageSize",
        field="max_message_size",
        read=bodies.small_integer,
        check=_message_size,
        applied=lambda holds: holds.max_message_bytes,
    ),
    Policy(
        path="delayedDelivery",
        field="delayed_delivery",
        read=DelayedDelivery.read,
        applied=lambda holds: holds.delayed_delivery,
        body=DelayedDelivery,
    ),
    _rate("dispatchRate", "dispatch_rate", DispatchRate),
    _rate("subscriptionDispatchRate", "subscription_dispatch_rate", DispatchRate),
    _rate("replicatorDispatchRate", "replicator_dispatch_rate", DispatchRate),
    _rate("publishRate", "publish_rate", PublishRate),
    _rate("subscribeRate", "subscribe_rate", SubscribeRate),
    Policy(
        path="deduplicationEnabled",
        field="deduplication_enabled",
        read=bodies.truth,
        applied=lambda holds: holds.deduplication_enabled,
        told_as="deduplication",
    ),
    Policy(
        path="deduplicationSnapshotInterval",
        field="deduplication_snapshot_interval_seconds",
        read=bodies.small_integer,
        check=_not_negative("deduplicationSnapshotInterval"),
        applied=lambda holds: holds.deduplication_snapshot_interval_s,
    ),
    Policy(
        path="compactionThreshold",
        field="compaction_threshold",
        read=bodies.integer,
        check=_not_negative("compactionThreshold"),
        applied=lambda holds: holds.compaction_threshold_bytes,
    ),
    Policy(
        path="inactiveTopicPolicies",
        field="inactive_topic_policies",
        read=InactiveTopicPolicies.read,
        applied=_applied_inactive,
        body=InactiveTopicPolicies,
    ),
    Policy(
        path="replication",
        field="replication_clusters",
        read=bodies.texts,
        applied=lambda holds: list(holds.replication_clusters),
    ),
    Policy(
        path="offloadPolicies",
        field="offload_policies",
        read=OffloadPolicies.read,
        applied=lambda holds: holds.offload,
        told_as="offload",
        body=OffloadPolicies,
    ),
    Policy(
        path="schemaCompatibilityStrategy",
        field="schema_compatibility_strategy",
        read=bodies.one_of(SchemaCompatibilityStrategy),
        applied=lambda holds: holds.schema_compatibility_strategy,
        verbs="GET PUT DELETE",
    ),
    Policy(
        path="schemaValidationEnforced",
        field="schema_validation_enforced",
        read=bodies.truth,
        applied=lambda holds: holds.schema_validation_enforced,
    ),
    Policy(
        path="autoSubscriptionCreation",
        field="auto_subscription_creation_override",
        read=AutoSubscriptionCreation.read,
        applied=lambda holds: AutoSubscriptionCreation(
            allow_auto_subscription_creation=holds.auto_subscription_creation
        ),
        body=AutoSubscriptionCreation,
    ),
    Policy(
        path="subscriptionTypesEnabled",
        field="subscription_types_enabled",
        read=bodies.several_of(SubscriptionType),
        applied=lambda holds: list(holds.subscription_types),
        unset=[],
    ),
    Policy(
        path="entryFilters",
        field="entry_filters",
        read=EntryFilters.read,
        may_be=enforcement.check_filters,
        applied=lambda holds: EntryFilters(entry_filter_names=",".join(holds.entry_filters)),
        body=EntryFilters,
    ),
    Policy(
        path="dispatcherPauseOnAckStatePersistent",
        field="dispatcher_pause_on_ack_state_persistent",
        read=bodies.truth,
        bare=True,
        applied=lambda holds: False,
    ),
    Policy(
        path="shadowTopics",
        field="shadow_topics",
        told_unset=[],  # Java's command line prints a list, and nothing is none.
        read=bodies.texts,
        applied=lambda holds: None,
        verbs="GET PUT DELETE",
    ),
)


async def get_subscription_rate(call: Call) -> DispatchRate | None:
    """How fast messages go out to one subscription."""
    call.notes.update(enforcement.note("subscriptionDispatchRate"))
    await require_policies(call)
    own = await call.admin.resources.topic_policies(call.topic)
    said = own.subscription_policies.get(call["subscription"])
    return said.dispatch_rate if said else None


async def set_subscription_rate(call: Call) -> None:
    """Say how fast messages go out to one subscription."""
    rate = None if call.json is None else DispatchRate.read(call.json)
    await _set_subscription_rate(call, rate)


async def remove_subscription_rate(call: Call) -> None:
    """Say nothing any more of how fast messages go out to one subscription."""
    await _set_subscription_rate(call, None)


async def _set_subscription_rate(call: Call, rate: DispatchRate | None) -> None:
    call.notes.update(enforcement.note("subscriptionDispatchRate"))
    await require_policies(call)
    subscription = call["subscription"]

    def put(own: TopicPolicies) -> TopicPolicies:
        others = {name: said for name, said in own.subscription_policies.items() if name != subscription}
        if rate is not None:
            others[subscription] = SubscriptionPolicies(dispatch_rate=rate)
        return own.changed(subscription_policies=others)

    await change(call, put)


async def remove_all(call: Call) -> None:
    """Say nothing any more of a topic."""
    await require_policies(call)
    await call.admin.resources.delete_topic_policies(call.topic)


ROUTES: Final = (
    Route("DELETE", f"{ONE}/policies", remove_all, *_WRITE),
    *(route for policy in POLICIES for route in policy.routes()),
    Route("GET", f"{ONE}/{{subscription}}/dispatchRate", get_subscription_rate, *_READ),
    Route("POST", f"{ONE}/{{subscription}}/dispatchRate", set_subscription_rate, *_WRITE, body=DispatchRate),
    Route("DELETE", f"{ONE}/{{subscription}}/dispatchRate", remove_subscription_rate, *_WRITE),
)
