"""A broker over the real log, and our client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from magnetar.client import Client
from magnetar.policies.effective import PolicyDefaults
from tests.integration.broker.conftest import BrokerUnderTest


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerUnderTest]:
    """One for all tests of a module, with deduplication on: each uses topics of its own."""
    directory = tmp_path_factory.mktemp("platform")
    broker = BrokerUnderTest(directory, PolicyDefaults(deduplication_enabled=True)).start()
    yield broker
    broker.stop()


@pytest.fixture
async def client(platform: BrokerUnderTest) -> AsyncIterator[Client]:
    client = Client(platform.url, operation_timeout_s=20.0, backoff_maximum_s=0.5)
    yield client
    await client.close()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic nobody else uses."""
    name: str = request.node.name
    return "persistent://public/default/" + name.replace("[", "-").replace("]", "")
