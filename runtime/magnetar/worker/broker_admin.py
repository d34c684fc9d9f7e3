"""What the worker asks of the brokers' admin API: whether namespaces exist, policies, subscriptions.

The standard library's HTTP client in a thread: these calls are rare, and may go to this very process.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote, urljoin, urlsplit

from magnetar.worker.errors import PlatformUnavailable

TIMEOUT_S = 30.0
REDIRECTS_MAX = 5
CREATED = 409
"""Conflict: it is there already, which is what was wanted."""


class BrokerAdmin(Protocol):
    """Raises PlatformUnavailable where no sensible answer can be had."""

    async def has_tenant(self, tenant: str) -> bool: ...

    async def has_namespace(self, tenant: str, namespace: str) -> bool: ...

    async def enable_deduplication(self, topic: str) -> None:
        """Of a topic by its full name, which is created if it does not exist."""

    async def create_subscription(self, topic: str, subscription: str) -> None:
        """At the end of the topic, which is created if it does not exist. No error if it is there already."""

    async def delete_subscription(self, topic: str, subscription: str) -> None:
        """With its backlog. No error if topic or subscription do not exist."""

    async def delete_topic(self, topic: str) -> None:
        """With everything in it. No error if it does not exist."""

    async def topics(self, tenant: str, namespace: str) -> list[str]:
        """Full names of the persistent topics; of partitioned ones, those of the partitions."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes

    @property
    def reason(self) -> str:
        try:
            return str(json.loads(self.body)["reason"])
        except (ValueError, KeyError, TypeError):
            return self.body.decode("utf-8", "replace")[:200]


class RestBrokerAdmin:
    """BrokerAdmin over `/admin/v2`."""

    def __init__(self, web_url: str) -> None:
        self._url = urlsplit(web_url)

    async def has_tenant(self, tenant: str) -> bool:
        return await self._exists(f"/admin/v2/tenants/{_quoted(tenant)}")

    async def has_namespace(self, tenant: str, namespace: str) -> bool:
        return await self._exists(f"/admin/v2/namespaces/{_quoted(tenant)}/{_quoted(namespace)}")

    async def enable_deduplication(self, topic: str) -> None:
        path = f"{_topic_path(topic)}/deduplicationEnabled"
        answer = await self._call("POST", path, True)
        if answer.status == 404:
            created = await self._call("PUT", _topic_path(topic))
            if created.status >= 300 and created.status != CREATED:
                raise _refused("PUT", _topic_path(topic), created)
            answer = await self._call("POST", path, True)
        if answer.status >= 300:
            raise _refused("POST", path, answer)

    async def create_subscription(self, topic: str, subscription: str) -> None:
        path = f"{_topic_path(topic)}/subscription/{_quoted(subscription)}"
        answer = await self._call("PUT", path)
        if answer.status >= 300 and answer.status != CREATED:
            raise _refused("PUT", path, answer)

    async def delete_subscription(self, topic: str, subscription: str) -> None:
        path = f"{_topic_path(topic)}/subscription/{_quoted(subscription)}?force=true"
        answer = await self._call("DELETE", path)
        if answer.status >= 300 and answer.status != 404:
            raise _refused("DELETE", path, answer)

    async def delete_topic(self, topic: str) -> None:
        path = f"{_topic_path(topic)}?force=true"
        answer = await self._call("DELETE", path)
        if answer.status >= 300 and answer.status != 404:
            raise _refused("DELETE", path, answer)

    async def topics(self, tenant: str, namespace: str) -> list[str]:
        path = f"/admin/v2/persistent/{_quoted(tenant)}/{_quoted(namespace)}"
        answer = await self._call("GET", path)
        if answer.status == 404:
            return []
        if answer.status >= 300:
            raise _refused("GET", path, answer)
        names: list[str] = json.loads(answer.body)
        return names

    async def _exists(self, path: str) -> bool:
        answer = await self._call("GET", path)
        if answer.status not in (200, 404):
            raise _refused("GET", path, answer)
        return answer.status == 200

    async def _call(self, method: str, path: str, body: Any = None) -> Answer:
        try:
            return await asyncio.to_thread(self._exchange, method, path, body)
        except OSError as error:
            raise PlatformUnavailable(
                f"the admin API at {self._url.geturl()} does not answer: {error}"
            ) from error

    def _exchange(self, method: str, path: str, body: Any) -> Answer:
        """The answer, also of the broker that this one sends us to because it serves the topic."""
        url = urljoin(self._url.geturl(), path)
        for _ in range(REDIRECTS_MAX):
            answer, location = self._exchange_once(method, url, body)
            if answer.status not in (307, 308) or location is None:
                break
            url = urljoin(url, location)
        return answer

    @staticmethod
    def _exchange_once(method: str, url: str, body: Any) -> tuple[Answer, str | None]:
        from http.client import HTTPConnection, HTTPException, HTTPSConnection

        parts = urlsplit(url)
        connection_type = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        connection = connection_type(parts.hostname or "127.0.0.1", parts.port, timeout=TIMEOUT_S)
        try:
            data = None if body is None else json.dumps(body)
            target = f"{parts.path}?{parts.query}" if parts.query else parts.path
            connection.request(method, target, data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return Answer(response.status, response.read()), response.getheader("Location")
        except HTTPException as error:
            raise OSError(str(error) or type(error).__name__) from error
        finally:
            connection.close()


def _refused(method: str, path: str, answer: Answer) -> PlatformUnavailable:
    return PlatformUnavailable(f"{method} {path} was answered with {answer.status}: {answer.reason}")


def _topic_path(topic: str) -> str:
    from magnetar.naming import TopicName

    name = TopicName.parse(topic)
    return "/admin/v2/" + "/".join(
        _quoted(part) for part in (name.domain, name.tenant, name.namespace, name.local_name)
    )


def _quoted(part: str) -> str:
    return quote(part, safe="")
