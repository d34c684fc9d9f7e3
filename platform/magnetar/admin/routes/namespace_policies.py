"""/admin/v2/namespaces/{tenant}/{namespace}/…: one policy each, all by one table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from magnetar.admin import bodies, enforcement
from magnetar.admin.routes.namespaces import ONE
from magnetar.admin.routing import Guards, Route
from magnetar.policies import checks
from magnetar.policies.creation import AutoSubscriptionCreation, AutoTopicCreation
from magnetar.policies.delivery import DelayedDelivery, EntryFilters
from magnetar.policies.effective import PolicyDefaults
from magnetar.policies.errors import PreconditionFailed
from magnetar.policies.model import PolicyModel
from magnetar.policies.namespace import Policies, SubscriptionAuthMode, SubscriptionType
from magnetar.policies.rates import DispatchRate, PublishRate, SubscribeRate
from magnetar.policies.schemas import SchemaAutoUpdateStrategy, SchemaCompatibilityStrategy
from magnetar.policies.storage import (
    InactiveTopicPolicies,
    OffloadPolicies,
    PersistencePolicies,
    RetentionPolicies,
)
from magnetar.security.authorizer import Action

if TYPE_CHECKING:
    from magnetar.admin.answers import Result
    from magnetar.admin.call import Call

Check = Callable[[Any, Policies, PolicyDefaults], Any]

_READ: Final = (Guards.NAMESPACE, Action.READ_POLICY)
_WRITE: Final = (Guards.NAMESPACE, Action.WRITE_POLICY)


def _as_is(value: Any, said: Policies, defaults: PolicyDefaults) -> Any:
    return value


def _nothing(value: Any) -> list[str]:
    return []


def _not_negative(name: str) -> Check:
    return lambda value, said, defaults: checks.check_not_negative(name, value)


def _or_invalid(reason: str) -> Check:
    def check(value: int, said: Policies, defaults: PolicyDefaults) -> int:
        if value < 0:
            raise PreconditionFailed(reason)
        return value

    return check


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A policy that can be read, set and taken back."""

    path: str
    field: str
    """Of `Policies`."""
    read: Callable[[Any], Any]
    """Makes a value of the body's JSON. Raises BadValue."""
    check: Check = _as_is
    verbs: str = "GET POST DELETE"
    unset: Any = None
    """What the field holds when nothing is said."""
    untold: Any = None
    """What is told where nothing is said."""
    bare: Any = None
    """What is meant by setting it without a body; None: to take it back."""
    told_as: str = ""
    """The name that `enforcement` knows it by; its path if empty."""
    per_cluster: bool = False
    """Whether the field is a map with an entry for each cluster."""
    warn: Callable[[Any], list[str]] = _nothing
    """What whoever sets such a value should know."""
    may_be: Callable[[Call, Any], None] | None = None
    """Raises where this broker cannot do as is said."""
    body: type[PolicyModel] | None = None

    def routes(self) -> Iterator[Route]:
        handlers = {"GET": self._handler(self.get), "DELETE": self._handler(self.remove)}
        for verb in self.verbs.split():
            handler = handlers.get(verb) or self._handler(self.set)
            guards = _READ if verb == "GET" else _WRITE
            yield Route(
                verb,
                f"{ONE}/{self.path}",
                handler,
                *guards,
                body=self.body if verb in ("POST", "PUT") else None,
            )

    def _handler(self, act: Callable[[Call], Awaitable[Result]]) -> Callable[[Call], Awaitable[Result]]:
        noted = enforcement.note(self.told_as or self.path)

        async def handle(call: Call) -> Result:
            call.notes.update(noted)
            return await act(call)

        handle.__doc__ = f"{act.__doc__} `{self.path}`."
        return handle

    async def get(self, call: Call) -> Result:
        """What is said of"""
        value = getattr(await call.policies(), self.field)
        if self.per_cluster:
            value = value.get(call.admin.broker.settings.cluster)
        result: Result = self.untold if value is None else value
        return result

    async def set(self, call: Call) -> None:
        """Say something of"""
        said = self.bare if call.json is None else call.json
        if said is None:
            await self.remove(call)
            return
        value = self.read(said)
        if self.may_be is not None:
            self.may_be(call, value)
        defaults = await call.admin.resources.defaults()
        await self._store(call, lambda said: self.check(value, said, defaults))
        call.warn(self.warn(value))

    async def remove(self, call: Call) -> None:
        """Say nothing any more of"""
        await self._store(call, lambda said: None)

    async def _store(self, call: Call, value: Callable[[Policies], Any]) -> None:
        cluster = call.admin.broker.settings.cluster

        def change(said: Policies) -> Policies:
            new = value(said)
            if not self.per_cluster:
                return said.changed(**{self.field: self.unset if new is None else new})
            others = {name: each for name, each in getattr(said, self.field).items() if name != cluster}
            return said.changed(**{self.field: others if new is None else {**others, cluster: new}})

        await call.admin.resources.update_namespace(call.namespace, change)


def _limit(path: str, field: str) -> Policy:
    return Policy(path=path, field=field, read=bodies.small_integer, check=_not_negative(path))


def _persistence(value: PersistencePolicies, said: Policies, defaults: PolicyDefaults) -> PersistencePolicies:
    return checks.check_persistence(value)


def _retention(value: RetentionPolicies, said: Policies, defaults: PolicyDefaults) -> RetentionPolicies:
    return checks.check_retention(value, said.backlog_quota_map)


def _creation(value: AutoTopicCreation, said: Policies, defaults: PolicyDefaults) -> AutoTopicCreation:
    return checks.check_auto_topic_creation(value, defaults.max_partitions_per_topic)


def _rate(path: str, field: str, kind: type[PolicyModel]) -> Policy:
    return Policy(path=path, field=field, read=kind.read, per_cluster=True, body=kind)


POLICIES: Final = (
    Policy(
        path="retention",
        field="retention_policies",
        read=RetentionPolicies.read,
        check=_retention,
        body=RetentionPolicies,
    ),
    Policy(
        path="messageTTL",
        field="message_ttl_in_seconds",
        read=bodies.small_integer,
        check=_or_invalid("Invalid value for message TTL"),
    ),
    Policy(path="deduplication", field="deduplication_enabled", read=bodies.truth),
    _limit("maxProducersPerTopic", "max_producers_per_topic"),
    _limit("maxConsumersPerTopic", "max_consumers_per_topic"),
    _limit("maxConsumersPerSubscription", "max_consumers_per_subscription"),
    _limit("maxSubscriptionsPerTopic", "max_subscriptions_per_topic"),
    _limit("maxUnackedMessagesPerConsumer", "max_unacked_messages_per_consumer"),
    _limit("maxUnackedMessagesPerSubscription", "max_unacked_messages_per_subscription"),
    _limit("maxTopicsPerNamespace", "max_topics_per_namespace"),
    Policy(
        path="subscriptionExpirationTime",
        field="subscription_expiration_time_minutes",
        read=bodies.small_integer,
        check=_or_invalid("Invalid value for subscription expiration time"),
    ),
    Policy(
        path="persistence",
        field="persistence",
        read=PersistencePolicies.read,
        check=_persistence,
        warn=checks.persistence_warnings,
        body=PersistencePolicies,
    ),
    Policy(
        path="autoTopicCreation",
        field="auto_topic_creation_override",
        read=AutoTopicCreation.read,
        check=_creation,
        body=AutoTopicCreation,
    ),
    Policy(
        path="autoSubscriptionCreation",
        field="auto_subscription_creation_override",
        read=AutoSubscriptionCreation.read,
        body=AutoSubscriptionCreation,
    ),
    Policy(
        path="schemaCompatibilityStrategy",
        field="schema_compatibility_strategy",
        read=bodies.one_of(SchemaCompatibilityStrategy),
        verbs="GET PUT",
        unset=SchemaCompatibilityStrategy.UNDEFINED,
    ),
    Policy(
        path="schemaAutoUpdateCompatibilityStrategy",
        field="schema_auto_update_compatibility_strategy",
        read=bodies.one_of(SchemaAutoUpdateStrategy),
        verbs="GET PUT",
        told_as="schemaCompatibilityStrategy",
    ),
    _rate("dispatchRate", "topic_dispatch_rate", DispatchRate),
    _rate("subscriptionDispatchRate", "subscription_dispatch_rate", DispatchRate),
    _rate("replicatorDispatchRate", "replicator_dispatch_rate", DispatchRate),
    _rate("publishRate", "publish_max_message_rate", PublishRate),
    _rate("subscribeRate", "cluster_subscribe_rate", SubscribeRate),
    Policy(
        path="delayedDelivery",
        field="delayed_delivery_policies",
        read=DelayedDelivery.read,
        body=DelayedDelivery,
    ),
    Policy(
        path="inactiveTopicPolicies",
        field="inactive_topic_policies",
        read=InactiveTopicPolicies.read,
        body=InactiveTopicPolicies,
    ),
    Policy(
        path="compactionThreshold",
        field="compaction_threshold",
        read=bodies.integer,
        check=_or_invalid("Invalid value for compactionThreshold"),
        verbs="GET PUT DELETE",
    ),
    Policy(
        path="offloadThreshold",
        field="offload_threshold",
        read=bodies.integer,
        verbs="GET PUT",
        unset=-1,
        told_as="offload",
    ),
    Policy(
        path="offloadThresholdInSeconds",
        field="offload_threshold_in_seconds",
        read=bodies.integer,
        verbs="GET PUT",
        unset=-1,
        told_as="offload",
    ),
    Policy(
        path="offloadDeletionLagMs",
        field="offload_deletion_lag_ms",
        read=bodies.integer,
        verbs="GET PUT DELETE",
        told_as="offload",
    ),
    Policy(
        path="offloadPolicies",
        field="offload_policies",
        read=OffloadPolicies.read,
        verbs="GET POST",
        told_as="offload",
        body=OffloadPolicies,
    ),
    Policy(
        path="removeOffloadPolicies",
        field="offload_policies",
        read=OffloadPolicies.read,
        verbs="DELETE",
        told_as="offload",
    ),
    Policy(
        path="encryptionRequired",
        field="encryption_required",
        read=bodies.truth,
        verbs="GET POST",
        unset=False,
    ),
    Policy(
        path="subscriptionAuthMode",
        field="subscription_auth_mode",
        read=bodies.one_of(SubscriptionAuthMode),
        verbs="GET POST",
        unset=SubscriptionAuthMode.NONE,
    ),
    Policy(
        path="subscriptionTypesEnabled",
        field="subscription_types_enabled",
        read=bodies.several_of(SubscriptionType),
        unset=[],
    ),
    Policy(
        path="deduplicationSnapshotInterval",
        field="deduplication_snapshot_interval_seconds",
        read=bodies.small_integer,
        check=_or_invalid("Invalid value for deduplicationSnapshotInterval"),
        verbs="GET POST DELETE",
    ),
    Policy(
        path="entryFilters",
        field="entry_filters",
        read=EntryFilters.read,
        may_be=enforcement.check_filters,
        body=EntryFilters,
    ),
    Policy(
        path="dispatcherPauseOnAckStatePersistent",
        field="dispatcher_pause_on_ack_state_persistent",
        read=bodies.truth,
        untold=False,  # Java's clients take a plain boolean only.
        bare=True,
    ),
)


# What is never unset.


async def get_schema_validation(call: Call) -> bool:
    """Whether producers must have a schema where the topic has one; with `applied`, what holds."""
    enforced = (await call.policies()).schema_validation_enforced
    if call.flag("applied"):
        return enforced or (await call.admin.resources.defaults()).schema_validation_enforced
    return enforced


async def set_schema_validation(call: Call) -> None:
    """Say whether producers must have a schema where the topic has one."""
    wanted = bodies.truth(call.required("true or false"))
    await call.admin.resources.update_namespace(
        call.namespace, lambda said: said.changed(schema_validation_enforced=wanted)
    )


async def get_auto_update_schema(call: Call) -> bool:
    """Whether producers may bring new schemas."""
    said = (await call.policies()).is_allow_auto_update_schema
    return (await call.admin.resources.defaults()).allow_auto_update_schema if said is None else said


async def set_auto_update_schema(call: Call) -> None:
    """Say whether producers may bring new schemas."""
    allowed = bodies.truth(call.required("true or false"))
    await call.admin.resources.update_namespace(
        call.namespace, lambda said: said.changed(is_allow_auto_update_schema=allowed)
    )


ROUTES: Final = (
    *(route for policy in POLICIES for route in policy.routes()),
    Route("GET", f"{ONE}/schemaValidationEnforced", get_schema_validation, *_READ, query=("applied",)),
    Route("POST", f"{ONE}/schemaValidationEnforced", set_schema_validation, *_WRITE),
    Route("GET", f"{ONE}/isAllowAutoUpdateSchema", get_auto_update_schema, *_READ),
    Route("POST", f"{ONE}/isAllowAutoUpdateSchema", set_auto_update_schema, *_WRITE),
)
