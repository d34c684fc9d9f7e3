"""/admin/v2/{domain}/…/permissions: who may do what with one topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from magnetar.admin import bodies, enforcement
from magnetar.admin.routes.targets import ONE, parts
from magnetar.admin.routing import Guards, Route
from magnetar.policies.errors import PreconditionFailed
from magnetar.policies.namespace import AuthAction, Permissions, Policies
from magnetar.security.authorizer import Action

if TYPE_CHECKING:
    from magnetar.admin.call import Call


async def get_permissions(call: Call) -> Permissions:
    """What roles may do here, by the namespace's word and by the topic's."""
    call.notes.update(enforcement.note("permissions"))
    auth = (await call.policies()).auth_policies
    merged = {role: list(may) for role, may in auth.namespace_auth.items()}
    for text in dict.fromkeys((str(call.topic.base), str(call.topic))):
        for role, may in auth.destination_auth.get(text, {}).items():
            merged[role] = list(dict.fromkeys((*merged.get(role, ()), *may)))
    return merged


async def grant(call: Call) -> None:
    """Say what a role may do with a topic and all its partitions."""
    call.notes.update(enforcement.note("permissions"))
    actions = bodies.several_of(AuthAction)(call.required("a list of actions"))
    await call.policies()
    names, role = await _named(call), call["role"]

    def change(said: Policies) -> Policies:
        of_topics = dict(said.auth_policies.destination_auth)
        for name in names:
            of_topics[name] = {**of_topics.get(name, {}), role: actions}
        return said.changed(auth_policies=said.auth_policies.changed(destination_auth=of_topics))

    await call.admin.resources.update_namespace(call.topic.namespace_name, change)


async def revoke(call: Call) -> None:
    """Say nothing of a role any more. 412 where nothing was said of it here."""
    call.notes.update(enforcement.note("permissions"))
    await call.policies()
    names, role = await _named(call), call["role"]

    def change(said: Policies) -> Policies:
        of_topics = dict(said.auth_policies.destination_auth)
        if role not in of_topics.get(str(call.topic), {}):
            raise PreconditionFailed("Permissions are not set at the topic level")
        for name in names:
            left = {each: may for each, may in of_topics.pop(name, {}).items() if each != role}
            if left:
                of_topics[name] = left
        return said.changed(auth_policies=said.auth_policies.changed(destination_auth=of_topics))

    await call.admin.resources.update_namespace(call.topic.namespace_name, change)


async def _named(call: Call) -> list[str]:
    return list(dict.fromkeys((str(call.topic), *(str(name) for name in await parts(call)))))


_NAMESPACE: Final = (Guards.NAMESPACE, Action.ADMINISTER_NAMESPACE)

ROUTES: Final = (
    Route("GET", f"{ONE}/permissions", get_permissions, *_NAMESPACE),
    Route("POST", f"{ONE}/permissions/{{role}}", grant, *_NAMESPACE),
    Route("DELETE", f"{ONE}/permissions/{{role}}", revoke, *_NAMESPACE),
)
