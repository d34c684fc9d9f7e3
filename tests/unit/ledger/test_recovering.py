"""Recoveries among hung bookies, other recoveries and ensemble changes under way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from magnetar.ledger.errors import LedgerFenced, RecoveryFailed
from magnetar.ledger.metadata import LedgerMetadata, LedgerState, ledger_path
from magnetar.ledger.registry import Change
from magnetar.ledger.underreplicated import UnderreplicatedLedgers
from magnetar.simulation.bookies import BookieFaults
from tests.unit.ledger.house import Appends, House, payloads, until

PATIENT = BookieFaults(delay_s=0.001, timeout_s=60.0)


@pytest.mark.parametrize("shape", [(3, 3, 2), (3, 2, 2), (5, 3, 2), (2, 2, 2)])
def test_one_hung_bookie_does_not_hold_up_a_recovery(shape: tuple[int, int, int]) -> None:
    """T7: the tail of 40 entries is written back in a moment, though nothing times out for a minute."""
    house = House(shape[0])

    async def story() -> None:
        writer = await house.client().create(*shape)
        appends = Appends(writer)
        appends.append(*payloads(40))
        await appends.answered(40)
        client = house.client()
        for name in house.bookies:
            house.views[-1].connection(name)._faults = PATIENT
        tail_needs_all = shape[1] == shape[2]
        if tail_needs_all:  # Then nothing can be written back without it; without a tail, it is not needed.
            appends.append(b"tells of the rest")
            await appends.answered(41)
            for bookie in house.bookies.values():
                bookie.ledgers[writer.ledger_id].entries.pop(40, None)
        house.views[-1].connection(writer.metadata.segments[0].ensemble[1]).cut = True
        began = house.loop.time()
        metadata = await client.recover(writer.ledger_id)
        assert metadata.last_entry == 39
        assert house.loop.time() - began < 1

    house.run(story())


def test_three_recoveries_at_once_and_a_writer_that_goes_on() -> None:
    house = House(5)

    async def story() -> None:
        writer = await house.client().create(3, 3, 2)
        appends = Appends(writer)
        appends.append(*payloads(30))
        await appends.answered(10)
        recovering = [asyncio.create_task(house.client().recover(writer.ledger_id)) for _ in range(3)]
        while not all(each.done() for each in recovering):
            if not writer.closed:
                appends.append(b"x")
            await asyncio.sleep(0.001)
        ends = {(each.result().last_entry, each.result().length) for each in recovering}
        assert len(ends) == 1
        assert ends.pop()[0] >= appends.acked[-1]

    house.run(story())


def test_a_recovery_overtakes_an_ensemble_change_under_way() -> None:
    """The writer has chosen another bookie and is about to say so when the ledger goes into recovery."""
    house = House(4)

    async def story() -> None:
        client = house.client()
        writer = await client.create(3, 3, 3)
        appends = Appends(writer)
        appends.append(*payloads(5))
        await appends.answered(5)
        registry = client.surroundings.registry
        store, reached, go_on = registry._store, asyncio.Event(), asyncio.Event()

        class Held:
            """The writer's way to the store is long."""

            get = store.get

            async def put(self, path: str, value: bytes, **how: Any) -> Any:
                if path == ledger_path(writer.ledger_id):
                    reached.set()
                    await go_on.wait()
                return await store.put(path, value, **how)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(registry, "_store", Held())
            house.bookies[writer.metadata.segments[0].ensemble[0]].crash()
            appends.append(*payloads(5))
            await reached.wait()
            other = house.client()
            metadata = await other.recover(writer.ledger_id)
            go_on.set()
            await until(lambda: writer.closed)
        assert appends.acked == list(range(5)), "none of the others was ever acknowledged"
        assert isinstance(appends.failed[0][1], LedgerFenced)
        assert metadata.last_entry >= 4
        assert await other.metadata_of(writer.ledger_id) == metadata
        reader = await other.open(writer.ledger_id, recover=False)
        assert len(await reader.read(0, 4)) == 5

    house.run(story())


def test_a_failed_recovery_names_the_bookies_and_leaves_the_ledger_in_recovery() -> None:
    house = House(3)

    async def story() -> None:
        writer = await house.client().create(3, 2, 2)
        appends = Appends(writer)
        appends.append(*payloads(3))
        await appends.answered(3)
        gone = sorted(writer.metadata.segments[0].ensemble[:2])
        for bookie in gone:
            house.bookies[bookie].crash()
        client = house.client()
        with pytest.raises(RecoveryFailed, match="UNREACHABLE") as failed:
            await client.recover(writer.ledger_id)
        assert sorted(failed.value.missing) == gone
        assert (await client.metadata_of(writer.ledger_id)).state is LedgerState.IN_RECOVERY

    house.run(story())


def test_what_a_recovery_could_not_write_everywhere_is_marked_before_the_ledger_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever recovers may die at once: nobody looks at a closed ledger by himself."""
    house = House(3)

    async def story() -> None:
        writer = await house.client().create(3, 3, 2)
        appends = Appends(writer)
        appends.append(*payloads(5))
        await appends.answered(5)
        gone = writer.metadata.segments[0].ensemble[2]
        house.bookies[gone].crash()
        client = house.client()
        store = UnderreplicatedLedgers(house.metadata.connect(house.clock))
        closed_at: list[set[str]] = []
        update = client.surroundings.registry.update

        async def seen(ledger_id: int, change: Change) -> LedgerMetadata:
            wanted = change(await client.metadata_of(ledger_id))
            if wanted is not None and wanted.closed:
                closed_at.append({bookie for mark in await store.list() for bookie in mark.missing})
            return await update(ledger_id, change)

        monkeypatch.setattr(client.surroundings.registry, "update", seen)
        await client.recover(writer.ledger_id)
        assert len(closed_at) == 1
        assert gone in closed_at[0]
        await until(lambda: client.surroundings.marks.marked > 0)
        (mark,) = await UnderreplicatedLedgers(house.metadata.connect(house.clock)).list()
        assert mark.ledger_id == writer.ledger_id
        assert gone in mark.missing

    house.run(story())


@pytest.mark.parametrize("shape", [(3, 3, 2), (3, 2, 2)])
def test_copies_that_were_under_way_when_the_writer_died_are_looked_for(shape: tuple[int, int, int]) -> None:
    """Confirmed by two of three, and the third never got it: a recovery reads only what is not confirmed."""
    house = House(3)

    async def story() -> None:
        writer = await house.client().create(*shape)
        appends = Appends(writer)
        appends.append(*payloads(5))
        await appends.answered(5)
        client = house.client()
        metadata = await client.recover(writer.ledger_id)
        if shape[1] > shape[2]:
            await until(lambda: client.surroundings.marks.marked > 0)
        marks = await UnderreplicatedLedgers(house.metadata.connect(house.clock)).list()
        found = {mark.ledger_id: set(mark.missing) for mark in marks}
        whom = {writer.ledger_id: set(metadata.segments[-1].ensemble)}
        assert found == (whom if shape[1] > shape[2] else {})

    house.run(story())
