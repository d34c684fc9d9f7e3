"""A bookie that lags, hangs or trickles is replaced or given up, and what it lacks is marked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerError, TooManyPending
from magnetar.ledger.metadata import LedgerMetadata
from magnetar.ledger.registry import Change
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.ledger.underreplicated import UnderreplicatedLedgers
from magnetar.ledger.writer import LedgerWriter
from tests.unit.ledger.house import FAULTS, Appends, House, until

SETTINGS = LedgerClientSettings(replica_lag_s=2.0, unacknowledged_bytes=200_000, ensemble_retry_s=1.0)


def slow(house: House, bookie: str, times: float) -> None:
    connection = house.views[0].connection(bookie)
    connection._faults = replace(FAULTS, delay_s=FAULTS.delay_s * times, timeout_s=30.0)


def lagging(client: LedgerClient) -> int:
    return client.surroundings.budget.lagging_bytes


async def marks(house: House) -> dict[int, tuple[str, ...]]:
    store = house.metadata.connect(house.clock)
    return {mark.ledger_id: mark.missing for mark in await UnderreplicatedLedgers(store).list()}


async def load(writer: LedgerWriter, appends: Appends, seconds: float) -> int:
    """10 entries of 1 kB every 10 ms. The most that ever waited for lagging bookies."""
    most = 0
    for _ in range(int(seconds * 100)):
        appends.append(*[b"x" * 1000] * 10)
        await asyncio.sleep(0.01)
        most = max(most, sum(member.lagging_bytes for member in writer._members))
    return most


def test_a_bookie_100_times_slower_is_replaced_and_its_fragment_marked() -> None:
    house = House(4)

    async def story() -> None:
        client = house.client(SETTINGS)
        writer = await client.create(3, 3, 2)
        victim = writer.metadata.segments[0].ensemble[1]
        appends = Appends(writer)
        await load(writer, appends, 0.2)
        slow(house, victim, 5000)  # Up to 5 s and more for an answer.
        most = await load(writer, appends, 5)
        assert most < 400_000
        assert victim not in writer.metadata.segments[-1].ensemble
        await appends.answered(5200)
        assert appends.acked == list(range(5200)), "nobody who appends saw anything of it"
        await until(lambda: client.surroundings.marks.marked > 0)
        assert await marks(house) == {writer.ledger_id: (victim,)}
        await until(lambda: lagging(client) == 0)
        assert all(each.outstanding_bytes == 0 for each in writer._members)

    house.run(story())


def test_a_hung_bookie_that_nobody_can_replace_costs_its_share_and_no_more() -> None:
    house = House(3)

    async def story() -> None:
        client = house.client(SETTINGS)
        writer = await client.create(3, 3, 2)
        victim = writer.metadata.segments[0].ensemble[0]
        house.views[0].connection(victim).cut = True
        appends = Appends(writer)
        most = await load(writer, appends, 10)
        assert most < 400_000
        await appends.answered(10_000)
        assert appends.acked == list(range(10_000))
        assert len(writer.metadata.segments) == 1
        await until(lambda: client.surroundings.marks.marked > 0)
        assert await marks(house) == {writer.ledger_id: (victim,)}
        house.views[0].connection(victim).cut = False
        await asyncio.sleep(5)
        appends.append(b"again")
        await appends.answered(10_001)
        await until(lambda: house.bookies[victim].holds(writer.ledger_id, 10_000))

    house.run(story())


def test_a_bookie_that_trickles_is_replaced_by_bytes_though_it_answers() -> None:
    house = House(4)

    async def story() -> None:
        client = house.client(replace(SETTINGS, replica_lag_s=1000.0))
        writer = await client.create(3, 3, 2)
        victim = writer.metadata.segments[0].ensemble[2]
        connection = house.views[0].connection(victim)
        held: list[Callable[[], None]] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(connection, "add_entry", partial(hold, held, connection.add_entry))
            appends = Appends(writer)
            trickling = asyncio.create_task(trickle(held))
            most = await load(writer, appends, 3)
            trickling.cancel()
        assert most < 600_000
        assert victim not in writer.metadata.segments[-1].ensemble
        assert appends.acked == list(range(len(appends.acked)))

    def hold(held: list[Callable[[], None]], add_entry: Callable[..., None], *arguments: Any) -> None:
        held.append(partial(add_entry, *arguments))

    async def trickle(held: list[Callable[[], None]]) -> None:
        while True:
            if held:
                held.pop(0)()
            await asyncio.sleep(0.05)

    house.run(story())


def test_many_ledgers_share_one_budget() -> None:
    """None of them has much on its way to the hung bookie; all of them together have."""
    house = House(4)

    async def story() -> None:
        client = house.client(replace(SETTINGS, replica_lag_s=1000.0))
        writers = [await client.create(4, 4, 2) for _ in range(50)]
        house.views[0].connection("b0").cut = True
        appends = [Appends(writer) for writer in writers]
        for _ in range(8):
            for each in appends:
                each.append(b"x" * 1000)
            await asyncio.sleep(0.01)
        assert lagging(client) > SETTINGS.unacknowledged_bytes
        await until(lambda: client.surroundings.counts.dropped_replicas == 50)

    house.run(story())


def test_appends_beyond_the_budget_are_refused_and_taken_again_when_there_is_room() -> None:
    house = House(3)

    async def story() -> None:
        client = house.client(LedgerClientSettings(pending_bytes=10_000))
        first, second = await client.create(3, 3, 3), await client.create(3, 3, 3)
        appends = Appends(first)
        appends.append(*[b"x" * 1000] * 10)
        with pytest.raises(TooManyPending, match="10000 bytes wait to be confirmed"):
            first.append((b"x",), lambda entry_id, error: None)
        with pytest.raises(TooManyPending):
            second.append((b"x",), lambda entry_id, error: None)
        assert not first.closed, "it is nothing but a wait"
        await asyncio.wait_for(client.room(), 5)
        assert client.surroundings.budget.pending_bytes <= 5000
        Appends(second).append(b"x")
        await appends.answered(10)
        assert client.surroundings.counts.refused == 2

    house.run(story())


def test_nobody_gets_past_those_that_wait_for_room() -> None:
    """A ledger whose appends fill each gap at once, and another's that wait for half of the room to be free."""
    house = House(3)

    async def story() -> None:
        client = house.client(LedgerClientSettings(pending_bytes=10_000))
        greedy, *modest = [await client.create(3, 3, 3) for _ in range(4)]
        appended = 0

        def again(entry_id: int, error: LedgerError | None) -> None:
            nonlocal appended
            with suppress(TooManyPending):
                greedy.append((b"x" * 1000,), again)
                appended += 1

        for _ in range(10):
            greedy.append((b"x" * 1000,), again)

        async def patient(writer: LedgerWriter) -> None:
            await client.room()
            appends = Appends(writer)
            appends.append(b"x")
            await appends.answered(1)

        await asyncio.wait_for(asyncio.gather(*map(patient, modest)), 5)
        assert appended < 20

    house.run(story())


def test_whoever_gave_up_waiting_for_room_keeps_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(3)

    async def story() -> None:
        client = house.client(LedgerClientSettings(pending_bytes=10_000))
        writer = await client.create(3, 3, 3)
        appends = Appends(writer)
        appends.append(*[b"x" * 1000] * 10)
        waiting = asyncio.ensure_future(client.room())
        await asyncio.sleep(0)
        waiting.cancel()
        woken = asyncio.ensure_future(client.room())
        wake = client.surroundings.supervision._wake

        def wake_and_cancel() -> None:
            wake()
            woken.cancel()

        monkeypatch.setattr(client.surroundings.supervision, "_wake", wake_and_cancel)
        await appends.answered(10)
        assert woken.cancelled()
        appends.append(b"x")
        await appends.answered(11)
        assert client.surroundings.supervision.woken == 0

    house.run(story())


def test_what_a_stopped_writer_had_pending_is_room_again() -> None:
    house = House(3)

    async def story() -> None:
        client = house.client(LedgerClientSettings(pending_bytes=10_000))
        for end in ("close", "fence"):
            writer = await client.create(3, 3, 3)
            appends = Appends(writer)
            appends.append(*[b"x" * 1000] * 3)
            await appends.answered(3)
            house.views[0].connection("b1").cut = True
            appends.append(*[b"x" * 1000] * 10)
            room = asyncio.create_task(client.room())
            await asyncio.sleep(0)
            if end == "close":
                await writer.close()
            else:
                await house.client().recover(writer.ledger_id)
            await asyncio.wait_for(room, 10)
            house.views[0].connection("b1").cut = False
            await appends.answered(13)
            assert client.surroundings.budget.pending_bytes == 0

    house.run(story())


def test_a_dead_bookie_leaves_a_mark_though_the_store_is_away_for_a_while() -> None:
    house = House(3)

    async def story() -> None:
        client = house.client(SETTINGS)
        writer = await client.create(3, 3, 2)
        appends = Appends(writer)
        house.bookies["b2"].crash()
        appends.append(*[b"x"] * 20)
        await appends.answered(20)
        await writer.close()
        await until(lambda: client.surroundings.marks.marked > 0)
        assert await marks(house) == {writer.ledger_id: ("b2",)}

    house.run(story())


def test_a_ledger_whose_copies_are_all_there_is_not_marked() -> None:
    house = House(4)

    async def story() -> None:
        client = house.client(SETTINGS)
        writer = await client.create(4, 3, 2)
        appends = Appends(writer)
        appends.append(*[b"x"] * 200)
        await appends.answered(200)
        await writer.close()
        await asyncio.sleep(5)
        await client.close()
        assert await marks(house) == {}
        assert lagging(client) == 0

    house.run(story())


def test_copies_still_on_their_way_are_marked_before_the_close_and_again_when_they_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever closes may die at once: nobody looks at a closed ledger by himself."""
    house = House(3)

    async def story() -> None:
        client = house.client(SETTINGS)
        writer = await client.create(3, 3, 2)
        house.views[0].connection("b0").cut = True
        appends = Appends(writer)
        appends.append(b"x")
        await appends.answered(1)
        closed_at: list[dict[int, tuple[str, ...]]] = []
        update = client.surroundings.registry.update

        async def seen(ledger_id: int, change: Change) -> LedgerMetadata:
            closed_at.append(await marks(house))
            return await update(ledger_id, change)

        monkeypatch.setattr(client.surroundings.registry, "update", seen)
        await writer.close()
        assert closed_at == [{writer.ledger_id: ("b0",)}]
        assert client.surroundings.marks.marked == 0
        await until(lambda: client.surroundings.marks.marked > 0)
        assert await marks(house) == {writer.ledger_id: ("b0",)}

    house.run(story())


def test_with_a_delayed_change_a_failing_bookie_stays_until_the_quorum_needs_another() -> None:
    house = House(5)

    async def story() -> None:
        client = house.client(replace(SETTINGS, delay_ensemble_change=True))
        writer = await client.create(3, 3, 2)
        first, second, _ = writer.metadata.segments[0].ensemble
        appends = Appends(writer)
        house.bookies[first].crash()
        appends.append(*[b"x"] * 20)
        await appends.answered(20)
        assert len(writer.metadata.segments) == 1
        house.bookies[second].crash()
        appends.append(*[b"x"] * 20)
        await appends.answered(40)
        assert appends.acked == list(range(40))
        assert not {first, second} & set(writer.metadata.segments[-1].ensemble)

    house.run(story())


def test_a_lac_that_no_entry_brings_is_told_by_itself() -> None:
    house = House(3)

    async def story() -> None:
        client = house.client(LedgerClientSettings(explicit_lac_s=0.5))
        writer = await client.create(3, 3, 2)
        appends = Appends(writer)
        appends.append(*[b"x"] * 5)
        await appends.answered(5)
        await asyncio.sleep(2)
        reader = await house.client().open(writer.ledger_id, recover=False)
        assert reader.last_confirmed == 4
        assert not client.surroundings.supervision.running, "no timer where nothing is to be done"

    house.run(story())


def test_a_fence_reaches_a_writer_through_a_copy_nobody_waits_for() -> None:
    house = House(3)

    async def story() -> None:
        writer = await house.client(SETTINGS).create(3, 3, 2)
        ended: list[LedgerError | None] = []
        await house.client().recover(writer.ledger_id)
        writer.append((b"x",), lambda entry_id, error: ended.append(error))
        await until(lambda: bool(ended))
        assert writer.closed

    house.run(story())
