"""/lookup/v2: which broker serves a topic, for clients that are given an http:// address."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from magnetar.admin.answers import Answer, text
from magnetar.admin.routes.targets import exists
from magnetar.admin.routing import Guards, Route
from magnetar.broker.errors import TopicNotFound
from magnetar.security.authorizer import Action

if TYPE_CHECKING:
    from magnetar.admin.call import Call

BASE: Final = "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}"


async def find(call: Call) -> dict[str, str]:
    """The broker that serves a topic. A topic that is not there, and will not come by itself, is not found."""
    if not await exists(call):
        policies = await call.admin.resources.effective(call.topic)
        if not policies.auto_topic_creation and not call.topic.is_system:
            raise TopicNotFound(f"Topic not found: {call.topic}")
    found = await call.admin.broker.lookup(call.topic, call.query.get("listenerName", ""))
    return {
        "brokerUrl": found.broker_url,
        # Clients in C++ give up unless one of the next two is there, empty or not.
        "brokerUrlTls": found.broker_url_tls,
        "brokerUrlSsl": found.broker_url_tls,
        "httpUrl": found.http_url,
        "httpUrlTls": found.http_url_tls,
        "nativeUrl": found.broker_url,
    }


async def bundle(call: Call) -> Answer:
    """The bundle a topic lies in: its range and nothing else, which clients paste into other paths."""
    await call.admin.resources.require_namespace(call.topic.namespace_name)
    return text((await call.admin.broker.topics.bundle(call.topic)).range)


_LOOKUP: Final = (Guards.TOPIC, Action.LOOKUP)

ROUTES: Final = (
    Route("GET", BASE, find, *_LOOKUP, query=("authoritative", "listenerName")),
    Route("GET", f"{BASE}/bundle", bundle, *_LOOKUP),
)
