"""Ledgers that somebody keeps with a cursor: named while it names them, gone when it is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from magnetar.managed_ledger.creation import new_ledger
from magnetar.managed_ledger.records import KEPT_LEDGERS
from tests.unit.managed_ledger.test_sweeper import CONFIG, NAME, House, appended


@pytest.mark.parametrize("delete_the_log", [False, True], ids=["cursor", "log"])
def test_a_kept_ledger_lives_as_long_as_the_cursor_that_names_it(delete_the_log: bool) -> None:
    house = House()

    async def story() -> None:
        factory, client = house.factory()
        log = await factory.open(NAME, CONFIG)
        cursor = await log.open_cursor("keeper")
        made = await new_ledger(client, house.clock, CONFIG, NAME, cursor="keeper")
        kept = made.writer.ledger_id
        await cursor.put_cursor_property(KEPT_LEDGERS, f"{kept},9999")
        await cursor.flush()
        # A cursor's own writes, and its recovery, leave it alone.
        cursor.acknowledge_cumulative(await appended(log, b"x"))
        await cursor.flush()
        await log.close()
        log = await factory.open(NAME, CONFIG)
        for _ in range(3):
            await asyncio.sleep(601)
            assert not (await factory.sweep()).orphans
        assert kept in await client.list()
        if delete_the_log:
            await factory.delete(NAME)
        else:
            await log.delete_cursor("keeper")
        assert kept not in await client.list()
        await factory.close()

    house.run(story())


def test_reading_on_from_a_place_acknowledges_nothing() -> None:
    house = House()

    async def story() -> None:
        factory, _ = house.factory()
        log = await factory.open(NAME, CONFIG)
        places: list[Any] = [await appended(log, bytes([number])) for number in range(4)]
        cursor = await log.open_cursor("reader", initial="earliest")
        cursor.read_on_from(places[2])
        cursor.read_on_from(places[1])
        assert [entry.position for entry in await cursor.read(10, 1000)] == places[2:]
        assert cursor.backlog == 4
        await factory.close()

    house.run(story())
