"""Kazoo's own thread may fail, on an answer that it did not expect: the store goes on with a new connection."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from magnetar.metadata.errors import StoreUnavailable
from magnetar.metadata.store import MetadataStore
from magnetar.metadata.zookeeper import ZooKeeperStore
from magnetar.testing.zookeeper import ZooKeeperServer

pytestmark = [pytest.mark.integration, pytest.mark.zookeeper]


async def put(store: MetadataStore, path: str) -> bool:
    try:
        await store.put(path, b"x")
    except StoreUnavailable:
        return False
    return True


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_connection_thread_that_failed_is_started_again(tmp_path: Path) -> None:
    with ZooKeeperServer(tmp_path) as server:
        store = await ZooKeeperStore.open(f"{server.address}?session_timeout_s=4")
        try:
            connection = store._client._connection
            usual = connection._read_response

            def fail(*_: Any) -> None:
                connection._read_response = usual
                raise RuntimeError("xids do not match, expected 1 received 3")

            connection._read_response = fail
            async with asyncio.timeout(60):
                assert not await put(store, "/lost")
                while not await put(store, "/stored"):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            assert await store.exists("/stored")
        finally:
            await store.close()
