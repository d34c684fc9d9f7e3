"""Marks: merged, never cleared by who looked too early; locks that end with their session."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.ledger.errors import MetadataCorrupt, MetadataUnavailable
from magnetar.ledger.underreplicated import DISABLE_PATH, MARKS_PATH, UnderreplicatedLedgers
from magnetar.metadata.memory import MemoryEnsemble
from magnetar.metadata.store import Notification


async def test_marking_again_adds_bookies() -> None:
    marks = UnderreplicatedLedgers(MemoryEnsemble().connect())
    await marks.mark(7, ["b"])
    await marks.mark(7, ["a", "b"])
    mark = await marks.get(7)
    assert mark is not None
    assert mark.missing == ("a", "b")
    assert mark.since_ms > 0
    assert [each.ledger_id for each in await marks.list()] == [7]
    assert await marks.get(8) is None


async def test_ids_of_every_size_come_back_in_order() -> None:
    marks = UnderreplicatedLedgers(MemoryEnsemble().connect())
    ids = [0, 42, 999_999, 1_000_000, 10**13, 2**63 - 1]
    for ledger_id in reversed(ids):
        await marks.mark(ledger_id, ["a"])
    assert await marks.ids() == ids


async def test_a_mark_made_again_outlives_a_repair_that_looked_before() -> None:
    """The same bookie, marked once more: something new may have happened to it."""
    marks = UnderreplicatedLedgers(MemoryEnsemble().connect())
    await marks.mark(7, ["a"])
    seen = await marks.get(7)
    assert seen is not None
    await marks.mark(7, ["a"])
    assert not await marks.clear(seen)
    again = await marks.get(7)
    assert again is not None
    assert again.missing == ("a",)
    assert await marks.clear(again)
    assert await marks.list() == []
    assert await marks.clear(again), "what is gone is gone"


async def test_one_worker_at_a_time_and_none_for_ever() -> None:
    ensemble = MemoryEnsemble()
    one, two = ensemble.connect(), ensemble.connect()
    mine = await UnderreplicatedLedgers(one).lock(7, "one")
    assert mine is not None
    others = UnderreplicatedLedgers(two)
    assert await others.lock(7, "two") is None
    assert await others.locks() == {7: "one"}
    await one.close()
    theirs = await others.lock(7, "two")
    assert theirs is not None
    await theirs.release()
    assert await others.locks() == {}


async def test_a_lock_is_lost_with_its_session() -> None:
    ensemble = MemoryEnsemble()
    store = ensemble.connect()
    lock = await UnderreplicatedLedgers(store).lock(7, "one")
    assert lock is not None
    assert lock.held
    store.expire()
    await asyncio.sleep(0)
    assert not lock.held
    other = await UnderreplicatedLedgers(ensemble.connect()).lock(7, "two")
    assert other is not None
    await lock.release()
    assert other.held, "a lock that was lost is not given back a second time"


async def test_a_lock_taken_unknowingly_is_ours() -> None:
    store = MemoryEnsemble().connect()
    marks = UnderreplicatedLedgers(store)
    assert await marks.lock(7, "one") is not None
    assert await marks.lock(7, "one") is not None
    assert await marks.lock(7, "another of this process") is None


async def test_watchers_hear_of_marks_and_of_the_end_of_a_pause() -> None:
    marks = UnderreplicatedLedgers(MemoryEnsemble().connect())
    heard: list[Notification] = []
    watch = marks.watch(heard.append)
    await marks.mark(1, ["a"], tell=False)
    assert heard == []
    await marks.mark(2, ["a"])
    await asyncio.sleep(0)
    told = len(heard)
    assert told
    assert not await marks.paused()
    await marks.pause()
    assert await marks.paused()
    await marks.resume()
    await marks.resume()
    assert not await marks.paused()
    await asyncio.sleep(0)
    assert len(heard) > told
    watch.cancel()


@pytest.mark.parametrize("value", [b"{}", b"no json", b'{"version":2,"missing":[]}', b'{"version":1}'])
async def test_a_mark_of_another_format_is_refused(value: bytes) -> None:
    store = MemoryEnsemble().connect()
    await store.put(f"{MARKS_PATH}/000000/0000000/000007", value)
    with pytest.raises(MetadataCorrupt):
        await UnderreplicatedLedgers(store).get(7)


async def test_a_store_that_does_not_answer_is_told_as_a_ledgers_error() -> None:
    store = MemoryEnsemble().connect()
    await store.put(DISABLE_PATH, b"")
    marks = UnderreplicatedLedgers(store)
    await store.close()
    with pytest.raises(MetadataUnavailable):
        await marks.mark(7, ["a"])
    with pytest.raises(MetadataUnavailable):
        await marks.paused()
