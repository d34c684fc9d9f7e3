"""Reading where replicas are silent, slow, moved or behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import NoSuchLedger, ReadFailed
from magnetar.ledger.metadata import LedgerMetadata, replace_in_segments
from magnetar.ledger.reader import LedgerReader
from magnetar.ledger.replica_read import distance
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.ledger.writer import LedgerWriter
from magnetar.protocol.bookie import BookieAddress
from magnetar.simulation.bookies import BookieFaults
from tests.unit.ledger.house import Appends, House, payloads

PATIENT = BookieFaults(delay_s=0.001, timeout_s=60.0)


async def written(client: LedgerClient, number: int, *shape: int) -> tuple[LedgerWriter, Appends]:
    writer = await client.create(*shape)
    appends = Appends(writer)
    appends.append(*payloads(number))
    await appends.answered(number)
    return writer, appends


async def all_of(reader: LedgerReader) -> list[bytes]:
    found: list[bytes] = []
    while len(found) <= reader.last_confirmed:
        found += [bytes(each.payload) for each in await reader.read(len(found), reader.last_confirmed)]
    return found


def patient(house: House) -> None:
    """Nothing times out for a minute: whoever does not wait has other reasons."""
    for bookie in house.bookies:
        house.views[-1].connection(bookie)._faults = PATIENT


@pytest.mark.parametrize("shape", [(3, 3, 2), (4, 3, 2)])
def test_a_silent_replica_costs_two_seconds_and_the_next_read_nothing(shape: tuple[int, int, int]) -> None:
    house = House(shape[0])

    async def story() -> None:
        writer, _ = await written(house.client(), 12, *shape)
        await writer.close()
        client = house.client()
        patient(house)
        reader = await client.open(writer.ledger_id, recover=False)
        silent = writer.metadata.fragment_of(0).write_set(0)[0 if shape[0] > 3 else reader._first_choice % 3]
        house.views[-1].connection(silent).cut = True
        began = house.loop.time()
        assert await all_of(reader) == payloads(12)
        assert 2 <= house.loop.time() - began < 2.5
        assert client.surroundings.counts.speculative_reads >= 1
        began = house.loop.time()
        assert await all_of(await client.open(writer.ledger_id, recover=False)) == payloads(12)
        assert house.loop.time() - began < 0.5, "others are asked first for a while"

    house.run(story())


def test_a_replica_that_says_no_is_not_waited_for() -> None:
    house = House(3)

    async def story() -> None:
        writer, _ = await written(house.client(), 5, 3, 3, 3)
        await writer.close()
        del house.bookies[writer.metadata.segments[0].ensemble[writer.ledger_id % 3]].ledgers[
            writer.ledger_id
        ]
        client = house.client()
        patient(house)
        began = house.loop.time()
        assert await all_of(await client.open(writer.ledger_id, recover=False)) == payloads(5)
        assert house.loop.time() - began < 0.1
        assert client.surroundings.counts.speculative_reads == 0

    house.run(story())


def test_when_all_say_no_it_is_absent_and_when_one_is_silent_it_is_not() -> None:
    house = House(3)

    async def story() -> None:
        client = house.client()
        writer, _ = await written(client, 5, 3, 3, 3)
        await writer.close()
        for bookie in house.bookies.values():
            bookie.ledgers[writer.ledger_id].entries.pop(3)
        with pytest.raises(ReadFailed, match="NO_SUCH_ENTRY") as all_said_no:
            await writer.reader().read(3, 4)
        assert all_said_no.value.absent
        house.views[0].connection("b1").cut = True
        with pytest.raises(ReadFailed, match="b1 answered TIMEOUT") as one_is_silent:
            await writer.reader().read(3, 4)
        assert not one_is_silent.value.absent

    house.run(story())


def test_a_reader_of_a_closed_ledger_follows_it_to_where_it_was_copied() -> None:
    """BookKeeper #4613: a cached handle kept calling a bookie that was decommissioned."""
    house = House(4)

    async def story() -> None:
        client = house.client()
        writer, _ = await written(client, 5, 3, 3, 3)
        await writer.close()
        reader = await client.open(writer.ledger_id, recover=False)
        (spare,) = set(house.bookies) - set(writer.metadata.segments[0].ensemble)
        old = writer.metadata.segments[0].ensemble
        gone = old[reader._first_choice % 3]
        house.bookies[spare].ledgers[writer.ledger_id] = house.bookies[gone].ledgers[writer.ledger_id]
        house.bookies[gone].crash()

        def copied(metadata: LedgerMetadata) -> LedgerMetadata | None:
            return replace_in_segments(metadata, 0, old, {old.index(gone): spare})

        await client.surroundings.registry.update(writer.ledger_id, copied)
        assert await all_of(reader) == payloads(5), "two others have it"
        await asyncio.sleep(1)
        assert spare in reader.metadata.segments[0].ensemble
        for bookie in old:
            house.bookies[bookie].crash()
        fresh = await client.open(writer.ledger_id, recover=False)
        assert await all_of(fresh) == payloads(5)

    house.run(story())


def test_a_writers_reader_follows_earlier_segments_to_where_they_were_copied() -> None:
    """Both bookies of the first one are emptied and ended while the ledger is written on elsewhere."""
    house = House(7)

    async def story() -> None:
        client = house.client()
        writer, appends = await written(client, 4, 2, 2, 2)
        old = writer.metadata.segments[0].ensemble
        for bookie in old:
            house.bookies[bookie].read_only = True
        appends.append(*payloads(8)[4:])
        await appends.answered(8)
        assert not set(writer.metadata.segments[-1].ensemble) & set(old)
        registry = client.surroundings.registry
        for segment in [each for each in writer.metadata.segments[:-1] if set(each.ensemble) & set(old)]:
            spare = sorted(
                set(house.bookies).difference(old, *(each.ensemble for each in writer.metadata.segments))
            )
            moved = {slot: spare[slot] for slot, each in enumerate(segment.ensemble) if each in old}
            for slot, target in moved.items():
                source = house.bookies[segment.ensemble[slot]]
                house.bookies[target].ledgers[writer.ledger_id] = source.ledgers[writer.ledger_id]
            await registry.update(
                writer.ledger_id,
                partial(
                    replace_in_segments,
                    first_entry=segment.first_entry,
                    expected=segment.ensemble,
                    bookies=moved,
                ),
            )
        for bookie in old:
            house.bookies[bookie].crash()
        assert await all_of(writer.reader()) == payloads(8)
        appends.append(b"more")
        await appends.answered(9)
        assert await writer.close() == 8
        assert await all_of(writer.reader()) == [*payloads(8), b"more"]

    house.run(story())


def test_nearby_replicas_are_read_first() -> None:
    addresses = {name: BookieAddress("h:1", "1", rack=rack) for name, rack in (("a", "/n/1"), ("b", "n/2/"))}
    assert [distance("n/1", addresses[name]) for name in "ab"] == [0, 1]
    assert distance("n/1", BookieAddress("h:1", "1", rack="/s/1")) == 2
    assert distance("n/1", None) == 2
    assert distance("1", BookieAddress("h:1", "1", rack="/2")) == 2, "racks without a region share none"


# What is confirmed of another's ledger.


def test_a_hung_bookie_does_not_hold_up_whoever_asks_what_is_confirmed() -> None:
    house = House(3)

    async def story() -> None:
        writer, appends = await written(house.client(), 5, 3, 3, 2)
        appends.append(b"one more tells of the fourth")
        await appends.answered(6)
        client = house.client()
        patient(house)
        house.views[-1].connection("b1").cut = True
        began = house.loop.time()
        reader = await client.open(writer.ledger_id, recover=False)
        assert reader.last_confirmed == 4
        assert house.loop.time() - began < 0.1
        for bookie in house.bookies.values():
            bookie.crash()
        with pytest.raises(ReadFailed, match=r"none of .* answers"):
            await client.open(writer.ledger_id, recover=False)

    house.run(story())


def test_a_corrupt_last_entry_does_not_vouch_for_a_confirmation() -> None:
    """Trap T17."""
    house = House(3)

    async def story() -> None:
        writer, _ = await written(house.client(), 5, 3, 3, 3)
        for bookie in house.bookies.values():
            stored = bookie.ledgers[writer.ledger_id].entries
            stored[4] = stored[4][:-1] + b"?"
        with pytest.raises(ReadFailed):
            await house.client().open(writer.ledger_id, recover=False)

    house.run(story())


# Waiting for more.


@pytest.mark.parametrize("shape", [(3, 3, 2), (4, 2, 2)])
def test_a_tail_reader_is_told_of_what_is_appended(shape: tuple[int, int, int]) -> None:
    house = House(shape[0])

    async def story() -> None:
        writer, appends = await written(house.client(LedgerClientSettings(explicit_lac_s=0.3)), 3, *shape)
        await asyncio.sleep(1)
        reader = await house.client().open(writer.ledger_id, recover=False)
        assert reader.last_confirmed == 2
        assert await reader.wait_for(1, 10) == 2, "what is known needs no waiting"
        began = house.loop.time()
        assert await reader.wait_for(2, 5) == 2
        assert 4.9 < house.loop.time() - began < 6
        waiting = asyncio.create_task(reader.wait_for(2, 60))
        await asyncio.sleep(3)
        appends.append(*payloads(7))
        began = house.loop.time()
        assert await waiting > 2
        assert house.loop.time() - began < 2
        await writer.wait_for(9, 0)
        assert await reader.wait_for(8, 60) == 9

    house.run(story())


@pytest.mark.parametrize("end", ["closed", "recovered"])
def test_a_tail_reader_is_told_of_the_end(end: str) -> None:
    house = House(3)

    async def story() -> None:
        writer, _ = await written(house.client(), 5, 3, 3, 2)
        reader = await house.client().open(writer.ledger_id, recover=False)
        assert reader.last_confirmed < 4
        waiting = asyncio.create_task(reader.wait_for(reader.last_confirmed, 120))
        await asyncio.sleep(1)
        if end == "closed":
            await writer.close()
        else:
            await house.client().recover(writer.ledger_id)
        assert await waiting == 4
        assert reader.closed
        assert await all_of(reader) == payloads(5)

    house.run(story())


def test_a_tail_reader_follows_a_writer_to_other_bookies() -> None:
    house = House(6)

    async def story() -> None:
        client = house.client()
        writer, appends = await written(client, 5, 3, 3, 3)
        reader = await house.client().open(writer.ledger_id, recover=False)
        waiting = asyncio.create_task(reader.wait_for(4, 120))
        await asyncio.sleep(0.5)
        for bookie in writer.metadata.segments[0].ensemble:
            house.views[0].connection(bookie).cut = True  # From the writer's side.
            appends.append(*payloads(3))
            await asyncio.sleep(2)
        await appends.answered(14)
        assert not set(writer.metadata.segments[-1].ensemble) & set(reader.metadata.segments[0].ensemble)
        assert await waiting > 4

    house.run(story())


def test_a_tail_reader_of_a_deleted_ledger_is_told() -> None:
    house = House(3)

    async def story() -> None:
        client = house.client()
        writer, _ = await written(client, 5, 3, 3, 2)
        reader = await client.open(writer.ledger_id, recover=False)
        await client.delete(writer.ledger_id)
        with pytest.raises(NoSuchLedger):
            await reader.wait_for(4, 120)

    house.run(story())


def test_readers_beside_a_writer_wait_for_its_acknowledgements() -> None:
    house = House(3)

    async def story() -> None:
        writer, appends = await written(house.client(), 5, 3, 3, 2)
        reader = writer.reader()
        assert await reader.wait_for(4, 1) == 4
        waiting = [asyncio.create_task(reader.wait_for(4, 60)) for _ in range(3)]
        await asyncio.sleep(0.1)
        appends.append(b"x")
        assert await asyncio.gather(*waiting) == [5, 5, 5]
        last = asyncio.create_task(reader.wait_for(5, 60))
        await asyncio.sleep(0)
        await writer.close()
        assert await last == 5
        assert not writer._tail_readers

    house.run(story())


def test_a_late_answer_does_no_harm() -> None:
    """The silent replica answers while the reader has long gone on."""
    house = House(3)

    async def story() -> None:
        writer, _ = await written(house.client(), 5, 3, 3, 3)
        await writer.close()
        client = house.client(replace(LedgerClientSettings(), speculative_read_s=0.1))
        reader = await client.open(writer.ledger_id, recover=False)
        slow = house.views[-1].connection(writer.metadata.segments[0].ensemble[reader._first_choice % 3])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(slow, "read_entries", partial(late, slow.read_entries))
            assert await all_of(reader) == payloads(5)
            await asyncio.sleep(5)
        await client.close()

    async def late(read_entries: Callable[..., Any], *arguments: Any) -> Any:
        await asyncio.sleep(3)
        return await read_entries(*arguments)

    house.run(story())
