"""Bookies, writers, workers and auditors die for real; every entry is then read from each replica named."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from magnetar.autorecovery.decommission import decommission
from magnetar.autorecovery.operations import status
from magnetar.environment.clock import SystemClock
from magnetar.ledger.errors import ReadFailed
from magnetar.protocol.bookie import COOKIES_PATH
from tests.integration.autorecovery.conftest import RealCluster, append, payload, until

ROOT = Path(__file__).resolve().parents[3]

pytestmark = [pytest.mark.integration, pytest.mark.zookeeper]


async def kill_one_of(cluster: RealCluster, ledger_id: int) -> str:
    """Kill the first bookie of a ledger."""
    bookie = (await cluster.client.metadata_of(ledger_id)).segments[0].ensemble[0]
    await asyncio.to_thread(cluster.bookies[bookie].kill)
    return bookie


async def written_and_abandoned(url: str, *arguments: int) -> int:
    """A ledger whose writer is killed. Its id."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.integration.autorecovery.writer_process",
        url,
        *map(str, arguments),
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            return int(await process.stdout.readline())
    finally:
        process.kill()
        await process.wait()


async def test_closed_ledger_one_of_two_bookies_lost_is_repaired(cluster: RealCluster) -> None:
    """E3 Qw2 Qa2."""
    ledgers = [await cluster.closed_ledger(3, 2, 2) for _ in range(5)]
    await cluster.start_autorecovery("one")
    lost = await kill_one_of(cluster, ledgers[0])
    await until(lambda: cluster.none_names(lost))
    for ledger_id in ledgers:
        assert await cluster.read_every_replica(ledger_id) == 200


async def test_open_ledger_bookie_lost_writer_alive_gets_a_new_fragment(cluster: RealCluster) -> None:
    """E3 Qw2 Qa1: the writer goes on, unfenced, and the old fragment is repaired."""
    writer = await cluster.client.create(3, 2, 1)
    await append(writer, 100)
    await asyncio.sleep(0.5)  # Both copies of every entry: with Qa 1 nobody waits for the second.
    await cluster.start_autorecovery("one")
    lost = await kill_one_of(cluster, writer.ledger_id)
    await until(cluster.marked)
    await append(writer, 100)
    await until(lambda: cluster.none_names(lost))
    await append(writer, 50)
    assert await writer.close() == 249
    metadata = await cluster.client.metadata_of(writer.ledger_id)
    assert len(metadata.segments) > 1
    reader = await cluster.client.open(writer.ledger_id, recover=False)
    for entry_id in range(250):
        (entry, *_) = await reader.read(entry_id, entry_id)
        assert bytes(entry.payload) == payload(entry_id)


async def test_writer_and_bookie_lost_is_reported(cluster: RealCluster) -> None:
    """E3 Qw2 Qa1: an entry may have been acknowledged by the lost bookie alone."""
    ledger_id = await written_and_abandoned(cluster.url, 3, 2, 1, 50)
    await cluster.start_autorecovery("one")
    lost = await kill_one_of(cluster, ledger_id)

    async def reported() -> bool:
        return bool((await status(cluster.store)).reports)

    await until(reported)
    (report,) = (await status(cluster.store)).reports
    assert report.ledger_id == ledger_id
    assert "cannot be recovered" in report.reason
    assert not (await cluster.client.metadata_of(ledger_id)).closed
    await cluster.start_bookie(lost)
    await until(cluster.no_marks)
    assert (await status(cluster.store)).reports == ()


async def test_a_closed_ledgers_ack_quorum_lost_for_good_is_reported_and_the_rest_served(
    cluster: RealCluster,
) -> None:
    """E3 Qw2 Qa2, two bookies lost."""
    ledger_id = await cluster.closed_ledger(3, 2, 2, entries=90)
    await cluster.start_autorecovery("one")
    first, second, _ = (await cluster.client.metadata_of(ledger_id)).segments[0].ensemble
    await asyncio.gather(*(asyncio.to_thread(cluster.bookies[name].kill) for name in (first, second)))

    async def lost() -> bool:
        return bool((await status(cluster.store)).lost)

    await until(lost)
    (report,) = (await status(cluster.store)).lost
    assert report.ledger_id == ledger_id
    assert report.lost_count == 30
    assert report.lost[0].entries == tuple((entry, entry) for entry in range(0, 90, 3))
    reader = await cluster.client.open(ledger_id, recover=False)
    for entry_id in range(6):
        if entry_id % 3:
            (entry, *_) = await reader.read(entry_id, entry_id)
            assert bytes(entry.payload) == payload(entry_id)
        else:
            with pytest.raises(ReadFailed):
                await reader.read(entry_id, entry_id)


@pytest.mark.parametrize(
    "point",
    [
        "autorecovery.before_copy",
        "autorecovery.chunk_copied:3",
        "autorecovery.before_rename",
        "autorecovery.renamed",
        "autorecovery.before_clear",
    ],
)
async def test_a_worker_killed_in_the_middle_is_followed_by_another(cluster: RealCluster, point: str) -> None:
    ledger_id = await cluster.closed_ledger(3, 3, 2)
    dying = await cluster.start_autorecovery("dying", crash=point, copy_batch_entries="20")
    lost = await kill_one_of(cluster, ledger_id)
    await asyncio.to_thread(dying.wait, 60)
    if point != "autorecovery.before_clear" and point != "autorecovery.renamed":
        assert lost in await cluster.names(ledger_id), "named only when all is copied"
    await cluster.start_autorecovery("following")
    await until(lambda: cluster.none_names(lost))
    assert await cluster.read_every_replica(ledger_id) == 200


async def test_an_auditor_killed_after_marking_half_is_followed_by_another(cluster: RealCluster) -> None:
    ledgers = [await cluster.closed_ledger(4, 4, 2, entries=10) for _ in range(6)]
    await cluster.start_bookie("bookie-4")
    dying = await cluster.start_autorecovery("dying", crash="autorecovery.marked_one:3")
    lost = await kill_one_of(cluster, ledgers[0])
    await asyncio.to_thread(dying.wait, 60)
    assert await cluster.marks.ids() == ledgers[:3]
    await cluster.start_autorecovery("following")
    await until(lambda: cluster.none_names(lost))
    for ledger_id in ledgers:
        assert await cluster.read_every_replica(ledger_id) == 10


async def test_marks_are_cancelled_when_the_bookie_returns(cluster: RealCluster) -> None:
    """All four bookies are in use: there is none to copy to."""
    ledgers = [await cluster.closed_ledger(4, 4, 2, entries=20) for _ in range(4)]
    before = [await cluster.client.metadata_of(ledger_id) for ledger_id in ledgers]
    await cluster.start_autorecovery("one")
    lost = await kill_one_of(cluster, ledgers[0])

    async def all_marked() -> bool:
        return await cluster.marks.ids() == ledgers

    await until(all_marked)
    await cluster.start_bookie(lost)
    await until(cluster.no_marks)
    assert [await cluster.client.metadata_of(ledger_id) for ledger_id in ledgers] == before
    assert (await status(cluster.store)).reports == ()


async def test_a_living_bookie_is_emptied_and_taken_out(cluster: RealCluster) -> None:
    ledgers = [await cluster.closed_ledger(3, 2, 2, entries=60) for _ in range(4)]
    ledgers.append(await cluster.closed_ledger(1, 1, 1, entries=30))
    (alone,) = await cluster.names(ledgers[-1])
    await cluster.start_autorecovery("one")
    last = None
    async with asyncio.timeout(60):
        async for progress in decommission(
            cluster.store, cluster.client, cluster.provider, alone, clock=SystemClock(), poll_s=0.2
        ):
            last = progress
    assert last is not None
    assert last.done
    assert not await cluster.store.exists(f"{COOKIES_PATH}/{alone}")
    await asyncio.to_thread(cluster.bookies[alone].stop)
    for ledger_id in ledgers:
        assert alone not in await cluster.names(ledger_id)
        await cluster.read_every_replica(ledger_id)
