"""The scenarios the design is known for, each told in simulation with production code. With real processes they are told
again in `tests/integration`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any

import pytest

from magnetar.autorecovery.autorecovery import Autorecovery
from magnetar.autorecovery.settings import AutorecoverySettings
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.writer import LedgerWriter
from magnetar.simulation.bookie_node import BookieNode
from magnetar.simulation.client_process import SimulatedClient
from magnetar.simulation.storage_world import StorageWorld


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """A world full of failures has much to say."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Stage:
    """A world in which nothing happens but what a scenario asks for."""

    def __init__(self, bookies: int) -> None:
        self.world = StorageWorld(7)
        self.cluster = self.world.cluster
        self.judge = self.world.judge
        for number in range(bookies):
            node = BookieNode(self.cluster, f"bookie-{number}")
            node.settings = replace(node.settings, on_lost_data="refuse")
            self.cluster.nodes[node.name] = node

    def play(self, scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def told() -> None:
            for node in self.cluster.nodes.values():
                node.start()
            await self.until(lambda: all(node.up for node in self.cluster.nodes.values()))
            await scenario()
            self.judge.over = True

        self.cluster.loop.run(told())
        assert self.judge.broken is None, self.judge.broken

    def client(self, name: str) -> SimulatedClient:
        return self.world.new_client(name)

    async def inside(self, client: SimulatedClient, work: Callable[[LedgerClient], Any]) -> Any:
        """Do something in a client's process."""

        async def run() -> Any:
            return await work(client.client or client.begin())

        return await client.process.run(run())

    async def append(
        self, client: SimulatedClient, writer: LedgerWriter, count: int, *, seconds: float = 10.0
    ) -> list[int]:
        """Append so many entries; the ids of those that were acknowledged in time."""
        acknowledged: list[int] = []

        def done(entry_id: int, error: LedgerError | None) -> None:
            if error is None:
                acknowledged.append(entry_id)
                self.judge.acknowledged(writer.ledger_id, entry_id, b"payload")

        def append() -> None:
            for _ in range(count):
                writer.append((b"payload",), done)

        client.process.call(append)
        await self.until(lambda: len(acknowledged) == count, seconds)
        return acknowledged

    async def read_all(self, client: SimulatedClient, ledger_id: int, *, recover: bool) -> int:
        """Read a ledger from one end to the other; how many entries it has."""

        async def read(ledgers: LedgerClient) -> int:
            reader = await ledgers.open(ledger_id, recover=recover)
            found = 0
            while found <= reader.last_confirmed:
                for entry in await reader.read(found, reader.last_confirmed):
                    assert bytes(entry.payload) == b"payload"
                    found += 1
            return found

        count: int = await self.inside(client, read)
        return count

    def repairer(self) -> SimulatedClient:
        client = self.client("autorecovery")

        async def repair(ledgers: LedgerClient) -> None:
            Autorecovery(
                client.store,
                ledgers,
                client.provider,
                clock=self.cluster.clock,
                dice=client.dice,
                settings=AutorecoverySettings(
                    lost_bookie_recovery_delay_s=0.5, open_ledger_grace_s=1.0, workers_idle_s=1.0, retry_s=0.5
                ),
                name="autorecovery",
            ).start()

        task = self.inside(client, repair)
        self.cluster.loop.create_task(task)
        return client

    async def until(self, holds: Callable[[], bool], seconds: float = 60.0) -> None:
        end = self.cluster.loop.now + seconds
        while not holds() and self.cluster.loop.now < end:  # noqa: ASYNC110  # Time is virtual.
            await asyncio.sleep(0.05)

    def node(self, name: str) -> BookieNode:
        return self.cluster.nodes[name]


def test_one_of_two_bookies_of_a_closed_ledger_is_lost_and_its_copies_are_made_anew() -> None:
    """E3 Qw2 Qa2, closed."""
    stage = Stage(4)

    async def scenario() -> None:
        owner = stage.client("owner")
        writer = await stage.inside(owner, lambda ledgers: ledgers.create(3, 2, 2))
        assert len(await stage.append(owner, writer, 60)) == 60
        await stage.inside(owner, lambda ledgers: writer.close())
        stage.repairer()
        lost = writer.metadata.segments[0].ensemble[0]
        stage.node(lost).lose_for_good()

        def is_whole() -> bool:
            segments = stage.judge.metadata[writer.ledger_id].segments
            return all(lost not in segment.ensemble for segment in segments)

        await stage.until(is_whole)
        assert is_whole()
        assert await stage.read_all(stage.client("reader"), writer.ledger_id, recover=False) == 60
        metadata = stage.judge.metadata[writer.ledger_id]
        for entry_id in range(60):
            holders = metadata.fragment_of(entry_id).write_set(entry_id)
            assert all(stage.judge.had(bookie, writer.ledger_id, entry_id) for bookie in holders)

    stage.play(scenario)


def test_a_bookie_of_an_open_ledger_is_lost_and_its_writer_goes_on_in_a_new_fragment() -> None:
    """E3 Qw2 Qa1; the broker lives."""
    stage = Stage(4)

    async def scenario() -> None:
        owner = stage.client("owner")
        writer = await stage.inside(owner, lambda ledgers: ledgers.create(3, 2, 1))
        assert len(await stage.append(owner, writer, 30)) == 30
        lost = writer.metadata.segments[0].ensemble[1]
        stage.node(lost).lose_for_good()
        assert len(await stage.append(owner, writer, 30)) == 30
        await stage.until(lambda: len(writer.metadata.segments) > 1, 10)
        assert lost not in writer.metadata.segments[-1].ensemble

    stage.play(scenario)


def test_a_broker_and_the_only_bookie_with_an_entry_are_lost_and_recovery_says_so() -> None:
    """E3 Qw2 Qa1; both die. Nobody can tell where the ledger ends, so nobody says."""
    stage = Stage(3)

    async def scenario() -> None:
        owner = stage.client("owner")
        writer = await stage.inside(owner, lambda ledgers: ledgers.create(3, 2, 1))
        await stage.append(owner, writer, 30)
        stage.node(writer.metadata.segments[0].ensemble[1]).lose_for_good()
        owner.kill()
        with pytest.raises(LedgerError, match="recovered"):
            await stage.inside(stage.client("next"), lambda ledgers: ledgers.recover(writer.ledger_id))
        assert not stage.judge.metadata[writer.ledger_id].closed

    stage.play(scenario)


def test_an_ack_quorum_of_a_closed_ledger_is_lost_and_the_rest_is_served() -> None:
    stage = Stage(5)

    async def scenario() -> None:
        owner = stage.client("owner")
        writer = await stage.inside(owner, lambda ledgers: ledgers.create(3, 2, 2))
        assert len(await stage.append(owner, writer, 9)) == 9
        await stage.inside(owner, lambda ledgers: writer.close())
        gone = writer.metadata.segments[0].ensemble[:2]
        for bookie in gone:
            stage.node(bookie).lose_for_good()

        async def readable(ledgers: LedgerClient) -> list[int]:
            reader = await ledgers.open(writer.ledger_id, recover=False)
            found = []
            for entry_id in range(9):
                try:
                    await reader.read(entry_id, entry_id)
                    found.append(entry_id)
                except LedgerError:
                    continue
            return found

        fragment = writer.metadata.last_fragment
        left = [each for each in range(9) if set(fragment.write_set(each)) - set(gone)]
        assert await stage.inside(stage.client("reader"), readable) == left
        assert len(left) == 6

    stage.play(scenario)


def test_an_owner_that_sleeps_through_its_deposition_has_nothing_acknowledged_afterwards() -> None:
    """Cut off from metadata, not from bookies; it stalls for 30 s and wakes."""
    stage = Stage(3)

    async def scenario() -> None:
        owner = stage.client("owner")
        writer = await stage.inside(owner, lambda ledgers: ledgers.create(3, 3, 2))
        assert len(await stage.append(owner, writer, 20)) == 20
        stage.cluster.cut = {("owner", "metadata")}
        owner.process.stop()
        late: list[LedgerError | None] = []
        owner.process.call(lambda: writer.append((b"payload",), lambda entry_id, error: late.append(error)))
        assert await stage.read_all(stage.client("next"), writer.ledger_id, recover=True) == 20
        await asyncio.sleep(30)
        owner.process.resume()
        await stage.until(lambda: bool(late), 30)
        assert late
        assert late[0] is not None
        assert stage.judge.metadata[writer.ledger_id].last_entry == 19

    stage.play(scenario)


@pytest.mark.parametrize("worst", [True, False])
def test_the_whole_site_loses_power_and_every_acknowledged_entry_is_there(worst: bool) -> None:
    stage = Stage(4)

    async def scenario() -> None:
        owner = stage.client("owner")
        writer = await stage.inside(owner, lambda ledgers: ledgers.create(3, 3, 2))
        acknowledged = await stage.append(owner, writer, 200)
        owner.kill()
        for node in stage.cluster.nodes.values():
            node.crash(power=True, worst=worst)
            node.start()
        await stage.until(lambda: all(node.up for node in stage.cluster.nodes.values()))
        assert len(acknowledged) == 200
        assert await stage.read_all(stage.client("next"), writer.ledger_id, recover=True) >= 200

    stage.play(scenario)


def test_metadata_are_gone_for_a_minute_and_all_returns_by_itself() -> None:
    stage = Stage(4)

    async def scenario() -> None:
        owner = stage.client("owner")
        writer = await stage.inside(owner, lambda ledgers: ledgers.create(3, 3, 2))
        stage.cluster.store_down = True
        assert len(await stage.append(owner, writer, 20)) == 20  # Bookies need no metadata.
        with pytest.raises(LedgerError):
            await stage.inside(owner, lambda ledgers: ledgers.create(3, 3, 2))
        await asyncio.sleep(60)
        stage.cluster.store_down = False
        second = await stage.inside(owner, lambda ledgers: ledgers.create(3, 3, 2))
        assert len(await stage.append(owner, second, 20)) == 20
        assert await stage.read_all(stage.client("next"), writer.ledger_id, recover=True) == 20

    stage.play(scenario)


def test_a_bookie_that_answers_a_hundred_times_slower_is_replaced_and_holds_nobody_up() -> None:
    stage = Stage(4)

    async def scenario() -> None:
        owner = stage.client("owner")
        writer = await stage.inside(owner, lambda ledgers: ledgers.create(3, 3, 2))
        slow = stage.node(writer.metadata.segments[0].ensemble[0])
        slow.disk.slow_s, slow.disk.slow_until = 8.0, 1e9
        begun = stage.cluster.loop.now
        assert len(await stage.append(owner, writer, 100)) == 100
        assert stage.cluster.loop.now - begun < 1
        await stage.until(lambda: len(writer.metadata.segments) > 1, 20)
        assert slow.name not in writer.metadata.segments[-1].ensemble

    stage.play(scenario)


def test_a_bookie_returns_with_yesterdays_disk_and_is_not_believed() -> None:
    """What it had acknowledged since is not on it: it must not deny it."""
    stage = Stage(3)

    async def scenario() -> None:
        owner = stage.client("owner")
        writer = await stage.inside(owner, lambda ledgers: ledgers.create(3, 3, 2))
        assert len(await stage.append(owner, writer, 50)) == 50
        node = stage.node("bookie-0")
        node.crash(power=False)
        yesterday = node.disk.copy()
        node.start()
        await stage.until(lambda: node.up)
        assert len(await stage.append(owner, writer, 200)) == 200
        await asyncio.sleep(90)  # The cookie tells how far the journal has come.
        node.crash(power=False)
        node.disk.become(yesterday)
        stage.judge.rotten.add(node.name)
        node.start()
        await asyncio.sleep(5)
        assert not node.up
        assert await stage.read_all(stage.client("next"), writer.ledger_id, recover=True) == 250

    stage.play(scenario)


@pytest.mark.parametrize("limbo", [True, False])
def test_a_bookie_with_an_empty_disk_denies_nothing_and_is_filled_or_refused(limbo: bool) -> None:
    stage = Stage(4)

    async def scenario() -> None:
        owner = stage.client("owner")
        writer = await stage.inside(owner, lambda ledgers: ledgers.create(3, 3, 2))
        assert len(await stage.append(owner, writer, 40)) == 40
        name = writer.metadata.segments[0].ensemble[0]
        node = stage.node(name)
        node.settings = replace(node.settings, on_lost_data="limbo" if limbo else "refuse")
        node.swap_disk()
        node.start()
        await stage.until(lambda: node.up, 5)
        assert node.up == limbo
        assert await stage.read_all(stage.client("next"), writer.ledger_id, recover=True) == 40
        if limbo:
            serving = node.bookie
            assert serving is not None
            await stage.until(lambda: not serving.limbo, 600)
            assert not serving.limbo
            assert stage.judge.met["swapped disks in limbo"] == 1
            assert len(node.index.ledgers[writer.ledger_id]) == 40
        else:
            assert stage.judge.met["disks refused"] == 1

    stage.play(scenario)
