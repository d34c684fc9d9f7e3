"""Writing, reading and recovering ledgers over bookies in memory, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from magnetar.ledger.errors import (
    EntryTooLarge,
    LedgerClosed,
    LedgerError,
    LedgerFenced,
    NoSuchLedger,
    NotEnoughBookies,
    ReadFailed,
    RecoveryFailed,
)
from magnetar.ledger.metadata import LedgerState
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.simulation.bookies import MemoryBookies
from tests.unit.ledger.house import Appends, House, payloads, until


def test_what_is_appended_is_read_back_in_order_from_every_shape() -> None:
    house = House(5)

    async def story() -> None:
        client = house.client()
        for shape in ((1, 1, 1), (3, 3, 2), (3, 2, 2), (5, 3, 2)):
            writer = await client.create(*shape)
            appends = Appends(writer)
            appends.append(*payloads(50))
            await appends.answered(50)
            assert appends.acked == list(range(50))
            open_reader = writer.reader()
            assert [bytes(each.payload) for each in await open_reader.read(0, 3)] == payloads(4)
            assert await writer.close() == 49
            reader = await client.open(writer.ledger_id, recover=False)
            assert reader.closed
            found: list[bytes] = []
            while len(found) < 50:
                found += [bytes(each.payload) for each in await reader.read(len(found), 49)]
            assert found == payloads(50)
            assert reader.length == sum(map(len, found))

    house.run(story())


def test_a_run_ends_at_the_limit_but_holds_one_entry() -> None:
    house = House(3)

    async def story() -> None:
        writer = await house.client().create(3, 3, 2)
        appends = Appends(writer)
        appends.append(*[b"x" * 1000] * 10)
        await appends.answered(10)
        assert len(await writer.reader().read(0, 9, max_bytes=3500)) == 3
        assert len(await writer.reader().read(4, 9, max_bytes=1)) == 1
        with pytest.raises(ReadFailed, match="only entries up to 9"):
            await writer.reader().read(10, 12)

    house.run(story())


def test_with_a_dead_bookie_and_no_other_it_goes_on_at_the_ack_quorum() -> None:
    house = House(3)

    async def story() -> None:
        writer = await house.client().create(3, 3, 2)
        appends = Appends(writer)
        appends.append(*payloads(5))
        await appends.answered(5)
        house.bookies["b1"].crash()
        appends.append(*payloads(200))
        await appends.answered(205)
        assert appends.acked == list(range(205))
        assert len(writer.metadata.segments) == 1
        house.bookies["b1"].restart()
        appends.append(b"again")
        await appends.answered(206)
        assert await writer.close() == 205

    house.run(story())


def test_with_a_spare_a_dead_bookie_is_replaced_and_what_waits_is_resent() -> None:
    house = House(4)

    async def story() -> None:
        writer = await house.client().create(3, 3, 3)  # Every append needs all three.
        appends = Appends(writer)
        appends.append(*payloads(5))
        await appends.answered(5)
        dead = writer.metadata.segments[0].ensemble[0]
        house.bookies[dead].crash()
        appends.append(*payloads(20))
        await appends.answered(25)
        assert appends.acked == list(range(25))
        last = writer.metadata.segments[-1]
        assert last.first_entry == 5
        assert dead not in last.ensemble
        assert all(house.bookies[bookie].holds(writer.ledger_id, 24) for bookie in last.ensemble)

    house.run(story())


def test_a_segment_nothing_was_confirmed_in_is_replaced() -> None:
    house = House(4)

    async def story() -> None:
        writer = await house.client().create(3, 3, 3)
        house.bookies[writer.metadata.segments[0].ensemble[0]].crash()
        appends = Appends(writer)
        appends.append(b"first")
        await appends.answered(1)
        assert [each.first_entry for each in writer.metadata.segments] == [0]

    house.run(story())


def test_when_the_quorum_is_lost_all_that_wait_are_told_and_the_ledger_can_be_closed() -> None:
    house = House(3)

    async def story() -> None:
        writer = await house.client().create(3, 3, 2)
        appends = Appends(writer)
        appends.append(*payloads(5))
        await appends.answered(5)
        house.bookies["b0"].crash()
        house.bookies["b1"].crash()
        appends.append(*payloads(3))
        await appends.answered(8)
        assert [entry_id for entry_id, _ in appends.failed] == [5, 6, 7]
        assert all(isinstance(error, NotEnoughBookies) for _, error in appends.failed)
        assert all("b0, b1 just failed" in str(error) for _, error in appends.failed)
        with pytest.raises(NotEnoughBookies):
            writer.append((b"more",), lambda entry_id, error: None)
        assert await writer.close() == 4

    house.run(story())


def test_a_recovery_fences_the_writer_and_keeps_all_it_was_told() -> None:
    house = House(3)

    async def story() -> None:
        writer = await house.client().create(3, 3, 2)
        appends = Appends(writer)
        appends.append(*payloads(30))
        await appends.answered(30)
        other = house.client()
        reader = await other.open(writer.ledger_id, recover=True)
        assert reader.last_confirmed == 29
        assert [bytes(each.payload) for each in await reader.read(0, 29)] == payloads(30)
        appends.append(b"too late")
        await appends.answered(31)
        ((entry_id, error),) = appends.failed
        assert entry_id == 30
        assert isinstance(error, LedgerFenced)
        assert writer.closed
        assert await writer.close() == 29, "the writer agrees with the recovery about the end"

    house.run(story())


def test_a_close_that_disagrees_with_a_recovery_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer never hears that its entries are stored; the recovery finds them."""
    house = House(3)

    async def story() -> None:
        writer = await house.client().create(3, 3, 2)
        for bookie in house.bookies:
            connection = house.views[0].connection(bookie)
            monkeypatch.setattr(connection, "add_entry", partial(deaf, connection.add_entry))
        appends = Appends(writer)
        appends.append(*payloads(3))
        await until(lambda: all(bookie.holds(writer.ledger_id, 2) for bookie in house.bookies.values()))
        assert (await house.client().open(writer.ledger_id, recover=True)).last_confirmed == 2
        assert not appends.acked
        with pytest.raises(LedgerFenced, match="closed at entry 2 by another"):
            await writer.close()

    def deaf(add_entry: Callable[..., None], *arguments: object) -> None:
        add_entry(*arguments[:-1], lambda status: None)

    house.run(story())


def test_a_recovery_without_enough_answers_leaves_the_ledger_in_recovery() -> None:
    house = House(3)

    async def story() -> None:
        writer = await house.client().create(3, 3, 2)
        appends = Appends(writer)
        appends.append(*payloads(3))
        await appends.answered(3)
        house.bookies["b0"].crash()
        house.bookies["b1"].crash()
        other = house.client()
        with pytest.raises(RecoveryFailed, match="retry later"):
            await other.open(writer.ledger_id, recover=True)
        assert (await other.metadata_of(writer.ledger_id)).state is LedgerState.IN_RECOVERY
        house.bookies["b0"].restart()
        assert (await other.open(writer.ledger_id, recover=True)).last_confirmed == 2

    house.run(story())


@pytest.mark.parametrize("reads_fence", [True, False])
def test_a_bookie_that_the_fence_did_not_reach_is_fenced_by_the_read(
    reads_fence: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trap T1. Entry 1 is on one bookie, on its way to another, when a recovery fences two of the three and
    reads past it. Were the read without the fence, the entry would then be acknowledged, and lost.
    """
    house = House(3)

    async def story() -> None:
        writer = await house.client().create(3, 3, 2)
        appends = Appends(writer)
        appends.append(b"entry 0")
        await until(lambda: all(bookie.holds(writer.ledger_id, 0) for bookie in house.bookies.values()))
        holder, fenced_too, unreached = writer.metadata.segments[0].ensemble
        on_the_way: list[Callable[[], None]] = []
        for bookie in (fenced_too, unreached):
            connection = house.views[0].connection(bookie)
            delayed = partial(hold, on_the_way, connection.add_entry)
            monkeypatch.setattr(connection, "add_entry", delayed)
        appends.append(b"entry 1")
        await until(lambda: house.bookies[holder].holds(writer.ledger_id, 1))

        other = house.client()
        view = house.views[1]
        view.connection(unreached).cut = True  # The fence is lost on its way there.
        for bookie in house.bookies:
            connection = view.connection(bookie)
            monkeypatch.setattr(connection, "read_entry", partial(read, connection.read_entry, view, holder))
        reader = await other.open(writer.ledger_id, recover=True)
        assert reader.last_confirmed == 0
        on_the_way[-1]()  # It arrives at the bookie that the fence did not reach.
        await until(lambda: len(appends.acked) == 2 or bool(appends.failed))
        lost = len(appends.acked) == 2
        assert lost == (not reads_fence)

    def hold(
        on_the_way: list[Callable[[], None]], add_entry: Callable[..., None], *arguments: object
    ) -> None:
        on_the_way.append(partial(add_entry, *arguments))

    async def read(
        read_entry: Callable[..., Any],
        view: MemoryBookies,
        holder: str,
        ledger_id: int,
        entry_id: int,
        *,
        fence: bool,
        master_key: bytes,
    ) -> Any:
        """From the first read on, the holder is not heard, and the bookie that missed the fence is."""
        for bookie in house.bookies:
            view.connection(bookie).cut = bookie == holder
        return await read_entry(ledger_id, entry_id, fence=fence and reads_fence, master_key=master_key)

    house.run(story())


def test_two_recoveries_at_once_agree() -> None:
    house = House(5)

    async def story() -> None:
        writer = await house.client().create(4, 3, 2)
        appends = Appends(writer)
        appends.append(*payloads(40))
        await until(lambda: len(appends.acked) > 3)
        readers = await asyncio.gather(
            *(house.client().open(writer.ledger_id, recover=True) for _ in range(3))
        )
        assert len({(reader.last_confirmed, reader.length) for reader in readers}) == 1
        assert readers[0].last_confirmed >= appends.acked[-1]

    house.run(story())


def test_cancelling_whoever_asked_cancels_no_recovery() -> None:
    house = House(3)

    async def story() -> None:
        writer = await house.client().create(3, 3, 2)
        appends = Appends(writer)
        appends.append(*payloads(3))
        await appends.answered(3)
        other = house.client()
        asking = asyncio.create_task(other.open(writer.ledger_id, recover=True))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await other.close()
        assert (await other.metadata_of(writer.ledger_id)).closed

    house.run(story())


def test_an_open_ledger_is_read_up_to_what_its_bookies_know() -> None:
    house = House(3)

    async def story() -> None:
        writer = await house.client().create(3, 3, 2)
        appends = Appends(writer)
        for payload in payloads(5):
            appends.append(payload)
            await appends.answered(len(appends.acked) + 1)
        reader = await house.client().open(writer.ledger_id, recover=False)
        assert not reader.closed
        assert reader.last_confirmed == 3, "the last entry's confirmation travels with the next"
        appends.append(b"the ledger is not fenced by being read")
        await appends.answered(6)
        assert not appends.failed

    house.run(story())


def test_a_corrupt_replica_is_passed_over() -> None:
    house = House(3)

    async def story() -> None:
        client = house.client()
        writer = await client.create(3, 3, 3)
        appends = Appends(writer)
        appends.append(*payloads(3))
        await appends.answered(3)
        for broken in ("b0", "b1"):
            stored = house.bookies[broken].ledger(writer.ledger_id).entries
            stored[1] = stored[1][:-1] + b"?"
        reader = writer.reader()
        found: list[bytes] = []
        while len(found) < 3:
            found += [bytes(each.payload) for each in await reader.read(len(found), 2)]
        assert found == payloads(3)

    house.run(story())


def test_a_slow_bookie_costs_no_more_memory_than_it_may() -> None:
    house = House(3)

    async def story() -> None:
        writer = await house.client(LedgerClientSettings(unacknowledged_bytes=10_000)).create(3, 3, 2)
        slow = writer.metadata.segments[0].ensemble[0]
        house.views[0].connection(slow).cut = True
        appends = Appends(writer)
        for number in range(1, 101):
            appends.append(b"x" * 1000)
            await appends.answered(number)
        assert len(appends.acked) == 100
        assert max(member.outstanding_bytes for member in writer._members) <= 12_000

    house.run(story())


def test_the_ends_of_a_ledger_are_told() -> None:
    house = House(3)

    async def story() -> None:
        client = house.client(LedgerClientSettings(max_entry_bytes=100))
        writer = await client.create(3, 3, 2, custom_metadata={"who": b"test"}, above=40)
        assert writer.ledger_id > 40
        with pytest.raises(EntryTooLarge, match="101 bytes exceeds the limit of 100"):
            writer.append((b"x" * 101,), lambda entry_id, error: None)
        assert await writer.close() == -1
        assert await writer.close() == -1
        with pytest.raises(LedgerClosed):
            writer.append((b"x",), lambda entry_id, error: None)
        assert (await client.metadata_of(writer.ledger_id)).custom == {"who": b"test"}
        assert await client.list() == [writer.ledger_id]
        await client.delete(writer.ledger_id)
        await client.delete(writer.ledger_id)
        assert await client.list() == []
        with pytest.raises(NoSuchLedger):
            await client.open(writer.ledger_id, recover=True)
        with pytest.raises(NotEnoughBookies):
            await client.create(4, 3, 2)
        with pytest.raises(ValueError, match="ensemble >= write quorum"):
            await client.create(3, 2, 3)

    house.run(story())


def test_a_callback_that_raises_takes_nobody_along() -> None:
    house = House(3)

    async def story() -> None:
        writer = await house.client().create(3, 3, 2)
        told: list[int] = []

        def rude(entry_id: int, error: LedgerError | None) -> None:
            told.append(entry_id)
            raise RuntimeError("of the caller's making")

        for _ in range(5):
            writer.append((b"x",), rude)
        await until(lambda: len(told) == 5)
        assert told == [0, 1, 2, 3, 4]

    house.run(story())


def test_a_store_that_answers_nonsense_ends_the_ledger_and_nobody_waits_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house = House(4)

    async def story() -> None:
        client = house.client()
        writer = await client.create(3, 3, 3)
        house.bookies[writer.metadata.segments[0].ensemble[0]].crash()

        async def nonsense(*_: object) -> None:
            raise ValueError("what the store answered is not understood")

        monkeypatch.setattr(type(client.surroundings.registry), "update", nonsense)
        appends = Appends(writer)
        appends.append(*payloads(3))
        await appends.answered(3)
        assert [entry_id for entry_id, _ in appends.failed] == [0, 1, 2]
        with pytest.raises(LedgerError, match="not understood"):
            writer.append((b"more",), lambda *_: None)

    house.run(story())
