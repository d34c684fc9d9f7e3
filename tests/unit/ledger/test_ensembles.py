"""Ledgers on the bookies they should be on: racks and groups from the metadata store, domains from registrations."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import replace

import pytest

from magnetar.ledger.bookie_racks import RACKS_PATH, BookieRacks
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import MetadataCorrupt, NotEnoughBookies
from magnetar.ledger.groups import BookieGroups
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.metadata.memory import MemoryEnsemble
from magnetar.protocol.bookie import BookieAddress
from magnetar.simulation.bookies import MemoryBookies
from tests.unit.ledger.house import FAULTS, Appends, House, until

GROUPS = BookieGroups(("left",), ("right",))


class Hosts(MemoryBookies):
    """Two bookies on each host."""

    async def readable(self) -> Mapping[str, BookieAddress]:
        found = await super().readable()
        return {
            bookie: replace(address, domain=f"host-{int(bookie[1:]) // 2}")
            for bookie, address in found.items()
        }


async def test_what_is_said_of_racks_is_read_again_when_it_changes() -> None:
    store = MemoryEnsemble().connect()
    racks, other = BookieRacks(store), BookieRacks(store)
    assert await racks.places() == {}
    await other.place("a", "/north/1")
    await other.place("b", "/south/1", "left")
    await asyncio.sleep(0)
    places = await racks.places()
    assert (places["a"].group, places["a"].rack) == ("default", "/north/1")
    assert (places["b"].group, places["b"].rack) == ("left", "/south/1")
    await other.place("b", "/south/2", "right")
    await other.remove("a")
    await asyncio.sleep(0)
    assert set(await racks.places()) == {"b"}
    assert (await racks.places())["b"].group == "right"
    racks.close()


async def test_a_record_that_makes_no_sense_changes_nothing_and_is_not_overwritten() -> None:
    store = MemoryEnsemble().connect()
    racks = BookieRacks(store)
    await racks.place("a", "/1")
    assert set(await racks.places()) == {"a"}
    await store.put(RACKS_PATH, b'{"version": 2}')
    await asyncio.sleep(0)
    assert set(await racks.places()) == {"a"}
    with pytest.raises(MetadataCorrupt, match="version 2"):
        await racks.place("b", "/1")


def test_a_ledger_keeps_to_its_groups_when_bookies_fail_and_when_it_is_recovered() -> None:
    house = House(6)

    async def story() -> None:
        client = house.client()
        for number in range(6):
            await client.racks.place(f"b{number}", "", "left" if number < 3 else "other")
        writer = await client.create(2, 2, 2, groups=GROUPS)
        assert set(writer.metadata.segments[0].ensemble) < {"b0", "b1", "b2"}
        appends = Appends(writer)
        appends.append(b"x")
        await appends.answered(1)
        house.bookies[writer.metadata.segments[0].ensemble[0]].crash()
        appends.append(b"y")
        await appends.answered(2)
        assert set(writer.metadata.segments[-1].ensemble) < {"b0", "b1", "b2"}
        house.bookies[writer.metadata.segments[-1].ensemble[0]].crash()
        appends.append(b"z")
        await appends.answered(3)
        assert isinstance(appends.failed[0][1], NotEnoughBookies), "three others are there, but not for it"
        assert BookieGroups.of(1, (await client.metadata_of(writer.ledger_id)).custom) == GROUPS

    house.run(story())


def on_two_hosts(house: House, settings: LedgerClientSettings | None = None) -> LedgerClient:
    view = Hosts(house.bookies, random.Random(1), FAULTS)
    store = house.metadata.connect(house.clock)
    return LedgerClient(store, view, clock=house.clock, random=random.Random(1), settings=settings)


def test_copies_that_must_share_a_host_are_counted_and_refused_where_that_is_wanted() -> None:
    house = House(4)

    async def story() -> None:
        lax = on_two_hosts(house)
        for _ in range(5):
            apart = (await lax.create(2, 2, 1)).metadata.segments[0].ensemble
            assert {int(bookie[1:]) // 2 for bookie in apart} == {0, 1}
        assert lax.surroundings.counts.shared_domains == 0
        await lax.create(3, 3, 2)
        assert lax.surroundings.counts.shared_domains == 1
        strict = on_two_hosts(house, LedgerClientSettings(placement_strict=True))
        with pytest.raises(NotEnoughBookies, match="in 2 failure domains"):
            await strict.create(3, 3, 2)

    house.run(story())


def test_a_dead_spare_and_a_dead_member_do_not_take_turns_for_ever() -> None:
    """Two of four bookies are dead and still registered: soon there is nobody left to try."""
    house = House(4)

    async def story() -> None:
        client = house.client()
        writer = await client.create(3, 3, 3)
        for bookie in {
            *writer.metadata.segments[0].ensemble[:1],
            *set(house.bookies) - set(writer.metadata.segments[0].ensemble),
        }:
            house.views[0].connection(bookie).cut = True
        appends = Appends(writer)
        appends.append(b"x")
        await appends.answered(1)
        assert isinstance(appends.failed[0][1], NotEnoughBookies)
        assert client.surroundings.counts.ensemble_changes == 1

    house.run(story())


def test_two_that_fail_while_the_ensemble_changes_are_both_replaced() -> None:
    house = House(7)

    async def story() -> None:
        writer = await house.client().create(4, 4, 3)
        first, second, third, _ = writer.metadata.segments[0].ensemble
        appends = Appends(writer)
        appends.append(*[b"x"] * 5)
        await appends.answered(5)
        house.bookies[first].crash()
        house.views[0].connection(second).cut = True  # Silent: it fails a second later.
        appends.append(*[b"x"] * 50)
        await asyncio.sleep(0.005)
        house.bookies[third].crash()
        appends.append(*[b"x"] * 50)
        await appends.answered(105)
        assert appends.acked == list(range(105))
        await until(lambda: not {first, second, third} & set(writer.metadata.segments[-1].ensemble))
        assert await writer.close() == 104

    house.run(story())
