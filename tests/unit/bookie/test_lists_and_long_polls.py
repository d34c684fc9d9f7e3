"""Which entries a bookie says it holds, and tail readers that wait for its LAC."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.server import BookieServer
from magnetar.ledger.bookie_client import BookieClient, BookieClientSettings
from magnetar.protocol.bookie import BookieAddress, BookieConnection, BookieStatus, LacRead
from tests.unit.bookie.workbench import KEY, add, add_many, running, until

OK = BookieStatus.OK


@asynccontextmanager
async def reached(bookie: Bookie, way: str) -> AsyncIterator[tuple[BookieConnection, BookieServer]]:
    """The bookie in this process, or the same behind a socket."""
    server = BookieServer(bookie, "127.0.0.1", 0)
    port = await server.start()

    async def resolve() -> BookieAddress:
        return BookieAddress(f"127.0.0.1:{port}", "life")

    settings = BookieClientSettings(request_timeout_s=1.0, tick_s=0.02)
    client = BookieClient("b1", resolve, dice=random.Random(1), settings=settings)
    try:
        yield (bookie if way == "direct" else client), server
    finally:
        await client.close()
        await server.stop(1)


@pytest.mark.parametrize("way", ["direct", "socket"])
async def test_a_list_names_what_lies_in_cache_and_log_and_nothing_else(tmp_path: Path, way: str) -> None:
    async with running(tmp_path) as bookie, reached(bookie, way) as (connection, _):
        await add_many(bookie, 1, [0, 1, 2, 7, 9])
        await add_many(bookie, 2, [3])
        await bookie.checkpoint()
        await add_many(bookie, 1, [8, 12])
        held = await connection.list_entries(1)
        assert (held.status, held.ranges) == (OK, ((0, 2), (7, 9), (12, 12)))
        assert 8 in held
        assert 10 not in held
        assert (await connection.list_entries(2)).ranges == ((3, 3),)
        assert (await connection.list_entries(3)).status is BookieStatus.NO_SUCH_LEDGER


@pytest.mark.parametrize("way", ["direct", "socket"])
async def test_a_long_poll_ends_when_the_lac_rises(tmp_path: Path, way: str) -> None:
    async with running(tmp_path) as bookie, reached(bookie, way) as (connection, _):
        await add(bookie, 1, 5)
        waiting = asyncio.create_task(connection.wait_lac(1, 6, 20))
        await until(lambda: len(bookie._lac_waits) == 1)
        await add(bookie, 1, 7)  # LAC 6: not yet.
        assert len(bookie._lac_waits) == 1
        await add(bookie, 1, 8)
        assert await waiting == LacRead(OK, 7)
        assert await connection.wait_lac(1, 6, 20) == LacRead(OK, 7)
        waiting = asyncio.create_task(connection.wait_lac(1, 7, 20))
        await until(lambda: len(bookie._lac_waits) == 1)
        await bookie.write_lac(1, 8, KEY)
        assert await waiting == LacRead(OK, 8)
        assert not bookie._lac_waits


@pytest.mark.parametrize("way", ["direct", "socket"])
async def test_a_long_poll_ends_with_a_fence_and_with_its_time(tmp_path: Path, way: str) -> None:
    async with running(tmp_path) as bookie, reached(bookie, way) as (connection, _):
        await add(bookie, 1, 5)
        assert await connection.wait_lac(1, 4, 0.05) == LacRead(OK, 4)
        assert (await connection.wait_lac(9, -1, 0.05)).status is BookieStatus.NO_SUCH_LEDGER
        waiting = asyncio.create_task(connection.wait_lac(1, 4, 20))
        await until(lambda: len(bookie._lac_waits) == 1)
        await bookie.read_lac(1, fence=True, master_key=KEY)
        async with asyncio.timeout(10):
            assert await waiting == LacRead(OK, 4)


async def test_a_wait_longer_than_a_request_may_take_is_asked_in_parts(tmp_path: Path) -> None:
    async with running(tmp_path) as bookie, reached(bookie, "socket") as (connection, _):
        await add(bookie, 1, 5)
        waiting = asyncio.create_task(connection.wait_lac(1, 4, 1.4))  # The time-out of a request is 1 s.
        assert await waiting == LacRead(OK, 4)


async def test_a_wait_on_a_ledger_that_comes_later_is_answered(tmp_path: Path) -> None:
    async with running(tmp_path) as bookie:
        waiting = asyncio.create_task(bookie.wait_lac(1, -1, 20))
        await until(lambda: len(bookie._lac_waits) == 1)
        await add(bookie, 1, 3)
        assert await waiting == LacRead(OK, 2)


async def test_waits_are_bounded_and_hold_up_neither_connection_nor_stop(tmp_path: Path) -> None:
    async with running(tmp_path, lac_waits_max=3) as bookie:
        async with reached(bookie, "socket") as (connection, server):
            await add(bookie, 1, 5)
            waits = [asyncio.create_task(connection.wait_lac(1, 9, 60)) for _ in range(3)]
            await until(lambda: len(bookie._lac_waits) == 3)
            assert (await connection.wait_lac(1, 9, 60)).status is BookieStatus.TOO_MANY_REQUESTS
            async with asyncio.timeout(5):
                await server.stop(60)
            assert {(await wait).status for wait in waits} == {BookieStatus.UNREACHABLE}
            await until(lambda: server.in_flight == 0)
        assert not bookie._lac_waits
