"""One real platform, with the tenants and namespaces that the official clients' own tests expect to find."""

from __future__ import annotations

import itertools
import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pulsar
import pytest

from magnetar.testing.processes import MagnetarProcess

PERMISSIONS = {"namespace_auth": {"anonymous": ["produce", "consume"], "token-principal": ["produce"]}}
NAMESPACES = ("public/default-2", "public/default-3", "private/auth")

EARLIEST = pulsar.InitialPosition.Earliest
SHARED = pulsar.ConsumerType.Shared
WAIT_MS = 5000
QUIET_MS = 150

_numbers = itertools.count()


def nothing_more(consumer: pulsar.Consumer) -> None:
    """Nothing comes any more."""
    with pytest.raises(pulsar.Timeout):
        consumer.receive(QUIET_MS)


class Platform:
    """A running standalone, and how to ask it things over HTTP as the official tests do."""

    def __init__(self, process: MagnetarProcess) -> None:
        self.process = process
        self.service_url = process.service_url
        self.web_url = process.web_url

    def rest(self, method: str, path: str, body: Any = None) -> Any:
        """Ask below /admin/v2; the decoded answer, or None where there is none.

        Raises:
            urllib.error.HTTPError: it was refused.
        """
        request = urllib.request.Request(
            f"{self.web_url}/admin/v2/{path}",
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def refused(self, method: str, path: str, body: Any = None) -> int:
        """The status of a request that must be refused."""
        with pytest.raises(urllib.error.HTTPError) as caught:
            self.rest(method, path, body)
        return caught.value.code

    def partitioned(self, topic: str, partitions: int) -> None:
        """Make a partitioned topic."""
        self.rest("PUT", f"{topic.replace('://', '/')}/partitions", partitions)


@pytest.fixture(scope="session")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """One for all modules here: each test uses topics of its own."""
    with MagnetarProcess.standalone(tmp_path_factory.mktemp("platform")) as process:
        platform = Platform(process)
        platform.rest("PUT", "tenants/private", {"adminRoles": [], "allowedClusters": ["standalone"]})
        for namespace in NAMESPACES:
            policies = {"auth_policies": PERMISSIONS, "replication_clusters": ["standalone"]}
            platform.rest("PUT", f"namespaces/{namespace}", policies)
        yield platform


@pytest.fixture
def new_client(platform: Platform) -> Iterator[Callable[..., pulsar.Client]]:
    """Makes official clients that tell only what went wrong, and closes them."""
    clients: list[pulsar.Client] = []

    def make(url: str = platform.service_url, **settings: Any) -> pulsar.Client:
        settings = {"operation_timeout_seconds": 10, **settings}
        client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), **settings)
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.shutdown()


@pytest.fixture
def client(new_client: Callable[..., pulsar.Client]) -> pulsar.Client:
    """An official client over the binary protocol."""
    return new_client()


@pytest.fixture
def topic() -> str:
    """A topic nobody used before."""
    return f"persistent://public/default/t-{os.getpid()}-{next(_numbers)}"
