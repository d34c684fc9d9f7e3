"""/admin/v2/namespaces: making, listing and deleting them, their permissions and properties."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from magnetar.admin import bodies, enforcement
from magnetar.admin.errors import Refused
from magnetar.admin.routing import Guards, Route
from magnetar.broker.errors import TopicNotFound
from magnetar.naming import NamespaceName, TopicName
from magnetar.policies.errors import NotFound, PreconditionFailed
from magnetar.policies.namespace import AuthAction, AuthPolicies, Policies
from magnetar.security.authorizer import Action

if TYPE_CHECKING:
    from collections.abc import Callable

    from magnetar.admin.admin import Admin
    from magnetar.admin.call import Call

BASE: Final = "/admin/v2/namespaces"
ONE: Final = f"{BASE}/{{tenant}}/{{namespace}}"
MODES: Final = ("PERSISTENT", "NON_PERSISTENT", "ALL")

_ATTEMPTS: Final = 3


async def list_namespaces(call: Call) -> list[str]:
    """A tenant's namespaces."""
    if await call.admin.resources.tenant(call["tenant"]) is None:
        raise NotFound("Tenant does not exist")
    return [str(name) for name in await call.admin.resources.namespaces(call["tenant"])]


async def get_policies(call: Call) -> Policies:
    """All that is said of a namespace."""
    return await call.policies()


async def list_topics(call: Call) -> list[str]:
    """A namespace's topics, partitions one by one."""
    await call.policies()
    mode = call.query.get("mode") or "PERSISTENT"
    if mode not in MODES:
        raise Refused(400, f"Invalid mode {mode[:40]!r}: one of {', '.join(MODES)} is wanted")
    return await call.admin.broker.topic_lists.topics(
        call.namespace,
        mode,  # type: ignore[arg-type]  # Checked above.
        system=call.flag("includeSystemTopic"),
    )


async def create_namespace(call: Call) -> None:
    """Make a namespace, with its policies in the body or without any."""
    policies = Policies.read(call.json)
    if policies.auth_policies != AuthPolicies():
        call.notes.update(enforcement.note("permissions"))
    await call.admin.resources.create_namespace(call.namespace, policies)


async def delete_namespace(call: Call) -> None:
    """Delete a namespace; with `force`, its topics too."""
    force = call.flag("force")
    if force and not call.admin.settings.force_delete_allowed:
        raise Refused(405, "Broker doesn't allow forced deletion of namespaces")
    await remove_namespace(call.admin, call.namespace, force=force)


async def remove_namespace(admin: Admin, namespace: NamespaceName, *, force: bool) -> None:
    """Empty a namespace, shut it, look again whether it stayed empty, and forget it.

    A client that makes a topic at the same moment is either too late, or noticed: then it all begins anew.
    """
    resources = admin.resources
    policies = await resources.require_namespace(namespace, deleted_too=True)
    if len(policies.replication_clusters) > 1:
        raise PreconditionFailed(
            f"Cannot delete the global namespace {namespace}. There are still more than one replication "
            f"clusters configured: {', '.join(policies.replication_clusters)}"
        )
    for _ in range(_ATTEMPTS):
        if policies.deleted:  # An earlier deletion went no further.
            await resources.update_namespace(namespace, lambda said: said.changed(deleted=False))
        await _empty(admin, namespace, force=force)
        policies = await resources.update_namespace(namespace, lambda said: said.changed(deleted=True))
        if not await _stored_topics(admin, namespace):
            await resources.delete_namespace(namespace)
            return
    await resources.update_namespace(namespace, lambda said: said.changed(deleted=False))
    raise Refused(
        409, f"Cannot delete namespace {namespace}: topics are being made in it all the time; retry"
    )


async def _empty(admin: Admin, namespace: NamespaceName, *, force: bool) -> None:
    names = [
        TopicName.parse(text) for text in await admin.broker.topic_lists.topics(namespace, "ALL", system=True)
    ]
    users = [name for name in names if not name.is_system]
    partitioned = await admin.resources.list_partitioned(namespace)
    if not force and (users or any(not base.is_system for base in partitioned)):
        raise Refused(
            409, f"Cannot delete non empty namespace {namespace}: delete its topics first, or force it"
        )
    for base in partitioned:
        await admin.resources.delete_partitioned(base)
    for name in names:
        try:
            await admin.delete_topic(name, force=True)
        except TopicNotFound:
            continue  # A partition that nobody has ever used.
    for name in {name.base: None for name in names}:
        await admin.broker.schemas.delete(name)
        await admin.resources.delete_topic_policies(name)


async def _stored_topics(admin: Admin, namespace: NamespaceName) -> list[str]:
    return await admin.broker.context.ledgers.list(f"{namespace}/persistent")


# Permissions.


async def get_permissions(call: Call) -> dict[str, list[AuthAction]]:
    """Which role may do what."""
    call.notes.update(enforcement.note("permissions"))
    return (await call.policies()).auth_policies.namespace_auth


async def grant(call: Call) -> None:
    """Say what a role may do, instead of what was said of it before."""
    actions = bodies.several_of(AuthAction)(call.required("a list of actions"))
    role = call["role"]
    await _change_auth(call, lambda auth: auth.changed(namespace_auth={**auth.namespace_auth, role: actions}))


async def revoke(call: Call) -> None:
    """Say nothing of a role any more."""
    role = call["role"]
    await _change_auth(
        call,
        lambda auth: auth.changed(
            namespace_auth={name: may for name, may in auth.namespace_auth.items() if name != role}
        ),
    )


async def get_subscription_permissions(call: Call) -> dict[str, list[str]]:
    """Which roles may use which subscription."""
    call.notes.update(enforcement.note("permissions"))
    return (await call.policies()).auth_policies.subscription_auth_roles


async def grant_subscription(call: Call) -> None:
    """Say which roles may use a subscription."""
    roles = bodies.texts(call.required("a list of roles"))
    subscription = call["subscription"]
    await _change_auth(
        call,
        lambda auth: auth.changed(
            subscription_auth_roles={**auth.subscription_auth_roles, subscription: roles}
        ),
    )


async def revoke_subscription(call: Call) -> None:
    """Let a role use a subscription no more."""
    subscription, role = call["subscription"], call["role"]

    def without(auth: AuthPolicies) -> AuthPolicies:
        roles = [name for name in auth.subscription_auth_roles.get(subscription, []) if name != role]
        others = {name: may for name, may in auth.subscription_auth_roles.items() if name != subscription}
        return auth.changed(subscription_auth_roles={**others, subscription: roles} if roles else others)

    await _change_auth(call, without)


async def _change_auth(call: Call, change: Callable[[AuthPolicies], AuthPolicies]) -> None:
    call.notes.update(enforcement.note("permissions"))
    await call.admin.resources.update_namespace(
        call.namespace, lambda said: said.changed(auth_policies=change(said.auth_policies))
    )


# Properties.


async def get_properties(call: Call) -> dict[str, str]:
    """A namespace's own properties."""
    return (await call.policies()).properties


async def set_properties(call: Call) -> None:
    """Add properties."""
    added = bodies.text_map(call.required("an object of strings"))
    await call.admin.resources.update_namespace(
        call.namespace, lambda said: said.changed(properties={**said.properties, **added})
    )


async def clear_properties(call: Call) -> None:
    """Forget all properties."""
    await call.admin.resources.update_namespace(call.namespace, lambda said: said.changed(properties={}))


async def get_property(call: Call) -> str | None:
    """One property."""
    return (await call.policies()).properties.get(call["key"])


async def set_property(call: Call) -> None:
    """Set one property."""
    key, value = call["key"], call["value"]
    await call.admin.resources.update_namespace(
        call.namespace, lambda said: said.changed(properties={**said.properties, key: value})
    )


async def delete_property(call: Call) -> str | None:
    """Forget one property, and tell what it was."""
    key = call["key"]
    before = (await call.policies()).properties.get(key)
    await call.admin.resources.update_namespace(
        call.namespace,
        lambda said: said.changed(
            properties={name: value for name, value in said.properties.items() if name != key}
        ),
    )
    return before


_READ: Final = (Guards.NAMESPACE, Action.READ_POLICY)
_WRITE: Final = (Guards.NAMESPACE, Action.WRITE_POLICY)
_ADMINISTER: Final = (Guards.NAMESPACE, Action.ADMINISTER_NAMESPACE)

ROUTES: Final = (
    Route("GET", f"{BASE}/{{tenant}}", list_namespaces, Guards.TENANT, Action.ADMINISTER_TENANT),
    Route("GET", ONE, get_policies, *_READ),
    Route("PUT", ONE, create_namespace, Guards.TENANT, Action.ADMINISTER_TENANT, body=Policies),
    Route("DELETE", ONE, delete_namespace, Guards.TENANT, Action.ADMINISTER_TENANT, query=("force",)),
    Route("GET", f"{ONE}/topics", list_topics, *_READ, query=("mode", "includeSystemTopic")),
    Route("GET", f"{ONE}/permissions", get_permissions, *_READ),
    Route("POST", f"{ONE}/permissions/{{role}}", grant, *_ADMINISTER),
    Route("DELETE", f"{ONE}/permissions/{{role}}", revoke, *_ADMINISTER),
    Route("GET", f"{ONE}/permissions/subscription", get_subscription_permissions, *_READ),
    Route("POST", f"{ONE}/permissions/subscription/{{subscription}}", grant_subscription, *_ADMINISTER),
    Route("DELETE", f"{ONE}/permissions/{{subscription}}/{{role}}", revoke_subscription, *_ADMINISTER),
    Route("GET", f"{ONE}/properties", get_properties, *_READ),
    Route("PUT", f"{ONE}/properties", set_properties, *_WRITE),
    Route("DELETE", f"{ONE}/properties", clear_properties, *_WRITE),
    Route("GET", f"{ONE}/property/{{key}}", get_property, *_READ),
    Route("PUT", f"{ONE}/property/{{key}}/{{value}}", set_property, *_WRITE),
    Route("DELETE", f"{ONE}/property/{{key}}", delete_property, *_WRITE),
)
