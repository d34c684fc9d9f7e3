"""Appends that the client of all ledgers has no room for wait their turn."""

from __future__ import annotations

import asyncio
import random

import pytest

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import QuorumLost
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.ledger.writer import LedgerWriter
from magnetar.managed_ledger import ManagedLedgerConfig
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from tests.unit.managed_ledger.test_managed_ledger import NAME, Appends, House, payloads, read_all

CONFIG = ManagedLedgerConfig(3, 3, 2, max_entries_per_ledger=150, min_rollover_s=0)


def test_appends_wait_for_room_in_order_over_rollovers_and_failing_bookies() -> None:
    house = House(4)

    async def story() -> None:
        owner = house.owner()
        settings = LedgerClientSettings(pending_bytes=600)
        client = LedgerClient(
            owner.store, owner.bookies, clock=house.clock, random=random.Random(1), settings=settings
        )
        factory = ManagedLedgerFactory(owner.store, client, clock=house.clock)
        logs = [await factory.open(NAME + end, CONFIG) for end in ("", "2")]
        cursor = await logs[0].open_cursor("reader", initial="earliest")
        appends = [Appends(log) for log in logs]
        for each in appends:
            each.append(*payloads(500))
        assert client.surroundings.budget.pending_bytes < 700
        for each in appends:
            await each.all_answered(200)
        house.bookies["b0"].crash()
        for each in appends:
            each.append(*payloads(300, 500))
            await each.all_answered(800)
            assert not each.failed
            assert [payload for _, _, payload in each.stored] == payloads(800)
            assert [index for _, index, _ in each.stored] == list(range(800))
        assert client.surroundings.counts.refused > 10
        assert client.surroundings.budget.pending_bytes == 0
        assert len(await read_all(cursor)) == 800
        await factory.close()
        await client.close()

    house.run(story())


def test_a_cursor_waits_for_room_in_the_ledger_it_has() -> None:
    house = House(3)

    async def story() -> None:
        owner = house.owner()
        settings = LedgerClientSettings(pending_bytes=600)
        client = LedgerClient(
            owner.store, owner.bookies, clock=house.clock, random=random.Random(1), settings=settings
        )
        factory = ManagedLedgerFactory(owner.store, client, clock=house.clock)
        log = await factory.open(NAME, CONFIG)
        cursor = await log.open_cursor("reader", initial="earliest")
        appends = Appends(log)
        appends.append(*payloads(5))
        await appends.all_answered(5)
        cursor.acknowledge_cumulative(appends.stored[0][0])
        await cursor.flush()
        kept_in = cursor.ledger_id
        assert kept_in >= 0
        appends.append(*payloads(100, 5))
        cursor.acknowledge_cumulative(appends.stored[1][0])
        await cursor.flush()
        assert cursor.ledger_id == kept_in  # Nothing has failed: no other ledger is needed.
        await appends.all_answered(105)
        await factory.close()
        await client.close()

    house.run(story())


def test_a_log_whose_waiting_appends_are_not_taken_after_all_can_be_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They fail as they are sent, with nothing in flight whose end would be told."""
    house = House(3)

    async def story() -> None:
        owner = house.owner()
        settings = LedgerClientSettings(pending_bytes=600)
        client = LedgerClient(
            owner.store, owner.bookies, clock=house.clock, random=random.Random(1), settings=settings
        )
        factory = ManagedLedgerFactory(owner.store, client, clock=house.clock)
        log = await factory.open(NAME, CONFIG)
        client.surroundings.budget.pending_bytes += 1000  # Another log's.
        appends = Appends(log)
        appends.append(*payloads(3))
        closing = asyncio.ensure_future(log.close())
        await asyncio.sleep(0.1)
        assert not closing.done()

        def refused(writer: LedgerWriter, parts: object, done: object) -> int:
            raise QuorumLost(writer.ledger_id, "for the test")

        monkeypatch.setattr(LedgerWriter, "append", refused)
        client.surroundings.budget.pending_bytes -= 1000
        client.surroundings.supervision.made_room()
        await asyncio.wait_for(closing, 60)
        assert len(appends.failed) == 3
        await factory.close()
        await client.close()

    house.run(story())


def test_whoever_closes_a_log_once_more_waits_for_the_first() -> None:
    house = House(3)

    async def story() -> None:
        owner = house.owner()
        log = await owner.factory.open(NAME, CONFIG)
        appends = Appends(log)
        appends.append(*payloads(3))
        await appends.all_answered(3)
        first = asyncio.ensure_future(log.close())
        await asyncio.sleep(0)
        await log.close()
        await asyncio.sleep(0)
        assert first.done()
        assert all(span.closed_ms for span in log.ledgers)
        await log.close()

    house.run(story())


@pytest.mark.parametrize("cancelled", [False, True], ids=["appends nothing", "is cancelled"])
def test_who_comes_behind_one_that_takes_no_room_after_all_gets_it(cancelled: bool) -> None:
    """Nothing is in flight whose end would wake him: he, and all behind him, waited for ever."""
    house = House(3)

    async def story() -> None:
        owner = house.owner()
        settings = LedgerClientSettings(pending_bytes=600)
        client = LedgerClient(
            owner.store, owner.bookies, clock=house.clock, random=random.Random(1), settings=settings
        )
        surroundings = client.surroundings
        surroundings.budget.pending_bytes += 1000
        first = asyncio.create_task(client.room())
        await asyncio.sleep(0)
        surroundings.budget.pending_bytes -= 1000
        second = asyncio.create_task(client.room())
        surroundings.supervision.made_room()  # For the first, whose turn comes after the second has asked.
        if cancelled:
            first.cancel()
        await asyncio.wait_for(second, 60)
        await asyncio.wait([first])
        await asyncio.sleep(0)
        assert not surroundings.supervision.refuses
        await client.close()

    house.run(story())
