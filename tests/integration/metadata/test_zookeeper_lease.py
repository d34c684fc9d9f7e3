"""The lease of a real ZooKeeper session: kept while heard, over in time when not."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from magnetar.metadata.store import SessionState
from magnetar.metadata.zookeeper import ZooKeeperStore
from magnetar.testing.zookeeper import ZooKeeperServer

pytestmark = [pytest.mark.integration, pytest.mark.zookeeper]

SESSION_S = 2.0
DEADLINE_S = 20.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path) as server:
        yield server


def sure(store: ZooKeeperStore) -> bool:
    return store.lease_until > time.monotonic()


async def until(wish: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not wish():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_a_lease_is_kept_lapses_with_the_server_and_comes_back(server: ZooKeeperServer) -> None:
    store = await ZooKeeperStore.open(f"{server.address}/test?session_timeout_s={SESSION_S}")
    await until(lambda: sure(store))
    kept_until = time.monotonic() + 2 * SESSION_S
    while time.monotonic() < kept_until:
        assert sure(store)
        assert store.lease_until <= time.monotonic() + SESSION_S / 2
        await asyncio.sleep(0.05)
    killed_at = time.monotonic()
    await asyncio.to_thread(server.kill)
    await until(lambda: not sure(store))
    assert time.monotonic() < killed_at + SESSION_S
    await asyncio.to_thread(server.start)
    await until(lambda: sure(store))
    await store.close()
    assert not sure(store)


async def test_the_span_is_of_what_the_server_grants_not_of_what_was_asked_for(
    server: ZooKeeperServer,
) -> None:
    """With a tick of 200 ms no session may last longer than 4 s."""
    store = await ZooKeeperStore.open(f"{server.address}/test?session_timeout_s=60")
    await until(lambda: sure(store))
    assert store.lease_until <= time.monotonic() + 2.0
    await store.close()


async def test_a_stopped_server_is_let_go_and_tells_nothing(server: ZooKeeperServer) -> None:
    store = await ZooKeeperStore.open(f"{server.address}/test?session_timeout_s={SESSION_S}")
    states: list[SessionState] = []
    store.on_session(states.append)
    await until(lambda: sure(store))
    stopped_at = time.monotonic()
    server.send_signal(signal.SIGSTOP)
    await until(lambda: not sure(store))
    await until(lambda: SessionState.LOST_CONNECTION in states)
    assert time.monotonic() < stopped_at + SESSION_S
    server.send_signal(signal.SIGCONT)
    await until(lambda: sure(store))
    await store.close()


async def test_a_process_that_was_stopped_wakes_without_a_lease(server: ZooKeeperServer) -> None:
    """Stopped past its session, it believes to hold the lock another holds by now; its lease knows better."""
    url = f"zk:{server.address}/test?session_timeout_s={SESSION_S}"
    other = await ZooKeeperStore.open(url.removeprefix("zk:"))
    holder = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, str(Path(__file__).with_name("leaseholder.py")), url],
        stdout=subprocess.PIPE,
        text=True,
    )
    said = holder.stdout
    assert said is not None
    try:
        async with asyncio.timeout(DEADLINE_S):
            assert (await asyncio.to_thread(said.readline)).startswith("held ")
        holder.send_signal(signal.SIGSTOP)
        async with asyncio.timeout(DEADLINE_S):
            while await other.exists("/lock"):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await other.put("/lock", b"other", expected_version=-1, ephemeral=True)
        holder.send_signal(signal.SIGCONT)
        heard = []
        async with asyncio.timeout(DEADLINE_S):
            while "lost\n" not in heard:
                heard.append(await asyncio.to_thread(said.readline))
        assert heard[0] == "woke unsure\n"
        assert "woke sure\n" not in heard
    finally:
        holder.kill()
        holder.wait()
        said.close()
        await other.close()
