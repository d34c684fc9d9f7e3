"""A fake broker and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from magnetar.client import Client
from tests.unit.client.fake_broker import FakeBroker


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    broker = FakeBroker()
    await broker.start()
    yield broker
    await broker.stop()


@pytest.fixture
async def client(broker: FakeBroker) -> AsyncIterator[Client]:
    client = Client(broker.url, operation_timeout_s=3.0, backoff_initial_s=0.01, backoff_maximum_s=0.05)
    yield client
    await client.close()
