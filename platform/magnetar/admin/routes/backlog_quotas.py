"""Backlog quotas, of namespaces and of topics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from magnetar.admin import bodies, enforcement
from magnetar.admin.routes import namespaces, targets
from magnetar.admin.routes.topic_policies import change, require_policies
from magnetar.admin.routing import Guards, Route
from magnetar.policies import checks
from magnetar.policies.effective import default_backlog_quotas
from magnetar.policies.errors import BadValue
from magnetar.policies.namespace import Policies
from magnetar.policies.quotas import BacklogQuota, BacklogQuotaType
from magnetar.policies.topic import TopicPolicies
from magnetar.security.authorizer import Action

if TYPE_CHECKING:
    from magnetar.admin.call import Call


async def get_of_namespace(call: Call) -> dict[str, Any]:
    """What is said of backlogs; with `applied`, what holds."""
    call.notes.update(enforcement.note("backlogQuota"))
    said = (await call.policies()).backlog_quota_map
    if call.flag("applied"):
        said = default_backlog_quotas(await call.admin.resources.defaults()) | said
    return _told(said)


async def set_of_namespace(call: Call) -> None:
    """Say how far behind subscriptions may fall, in bytes or in time."""
    call.notes.update(enforcement.note("backlogQuota"))
    kind, quota = _asked_type(call), _asked(call)

    def put(said: Policies) -> Policies:
        if quota is not None:
            checks.check_quota_fits(kind, quota, said.retention_policies)
        return said.changed(backlog_quota_map=_with(said.backlog_quota_map, kind, quota))

    await call.admin.resources.update_namespace(call.namespace, put)


async def remove_of_namespace(call: Call) -> None:
    """Say nothing of backlogs any more."""
    call.notes.update(enforcement.note("backlogQuota"))
    kind = _asked_type(call)
    await call.admin.resources.update_namespace(
        call.namespace, lambda said: said.changed(backlog_quota_map=_with(said.backlog_quota_map, kind, None))
    )


async def get_of_topic(call: Call) -> dict[str, Any]:
    """What is said of backlogs; with `applied`, what holds."""
    call.notes.update(enforcement.note("backlogQuota"))
    await require_policies(call)
    if call.flag("applied"):
        return _told((await call.admin.resources.effective(call.topic)).backlog_quotas)
    own = await call.admin.resources.topic_policies(call.topic, everywhere=call.flag("isGlobal"))
    return _told(own.backlog_quota_map)


async def set_of_topic(call: Call) -> None:
    """Say how far behind subscriptions may fall, in bytes or in time."""
    call.notes.update(enforcement.note("backlogQuota"))
    await require_policies(call)
    kind, quota = _asked_type(call), _asked(call)
    namespace = await call.policies()

    def put(own: TopicPolicies) -> TopicPolicies:
        if quota is not None:
            checks.check_quota_fits(kind, quota, own.retention_policies or namespace.retention_policies)
        return own.changed(backlog_quota_map=_with(own.backlog_quota_map, kind, quota))

    await change(call, put)


async def remove_of_topic(call: Call) -> None:
    """Say nothing of backlogs any more."""
    call.notes.update(enforcement.note("backlogQuota"))
    await require_policies(call)
    kind = _asked_type(call)
    await change(call, lambda own: own.changed(backlog_quota_map=_with(own.backlog_quota_map, kind, None)))


def _asked_type(call: Call) -> BacklogQuotaType:
    asked = call.query.get("backlogQuotaType") or BacklogQuotaType.destination_storage
    return bodies.one_of(BacklogQuotaType)(asked)


def _asked(call: Call) -> BacklogQuota | None:
    """The quota in the body, None for null. Raises BadValue."""
    if call.json is None:
        return None
    quota = BacklogQuota.read(call.json)
    if quota.policy is None:
        raise BadValue("Invalid BacklogQuota: policy is missing")
    return quota


def _with(
    quotas: Mapping[BacklogQuotaType, BacklogQuota], kind: BacklogQuotaType, quota: BacklogQuota | None
) -> dict[BacklogQuotaType, BacklogQuota]:
    others = {each: said for each, said in quotas.items() if each is not kind}
    return others if quota is None else {**others, kind: quota}


def _told(quotas: Mapping[BacklogQuotaType, BacklogQuota]) -> dict[str, Any]:
    return {kind.value: quota.to_json() for kind, quota in quotas.items()}


_OF_NAMESPACE: Final = namespaces.ONE
_OF_TOPIC: Final = targets.ONE
_TYPE: Final = ("backlogQuotaType",)

ROUTES: Final = (
    Route(
        "GET",
        f"{_OF_NAMESPACE}/backlogQuotaMap",
        get_of_namespace,
        Guards.NAMESPACE,
        Action.READ_POLICY,
        query=("applied",),
    ),
    Route(
        "POST",
        f"{_OF_NAMESPACE}/backlogQuota",
        set_of_namespace,
        Guards.NAMESPACE,
        Action.WRITE_POLICY,
        body=BacklogQuota,
        query=_TYPE,
    ),
    Route(
        "DELETE",
        f"{_OF_NAMESPACE}/backlogQuota",
        remove_of_namespace,
        Guards.NAMESPACE,
        Action.WRITE_POLICY,
        query=_TYPE,
    ),
    Route(
        "GET",
        f"{_OF_TOPIC}/backlogQuotaMap",
        get_of_topic,
        Guards.TOPIC,
        Action.READ_POLICY,
        query=("applied", "isGlobal"),
    ),
    Route(
        "POST",
        f"{_OF_TOPIC}/backlogQuota",
        set_of_topic,
        Guards.TOPIC,
        Action.WRITE_POLICY,
        body=BacklogQuota,
        query=_TYPE,
    ),
    Route(
        "DELETE", f"{_OF_TOPIC}/backlogQuota", remove_of_topic, Guards.TOPIC, Action.WRITE_POLICY, query=_TYPE
    ),
)
