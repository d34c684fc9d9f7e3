"""Compaction of a topic, from beginning to end."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.broker.compaction.compactor import Compactor, Outcome
from magnetar.broker.errors import CompactionRunning, SubscriptionNotFound
from magnetar.environment import crash
from magnetar.ledger.writer import LedgerWriter
from magnetar.managed_ledger.records import KEPT_LEDGERS
from magnetar.protocol.ids import MessageId
from magnetar.protocol.pulsar_pb2 import CompressionType
from tests.unit.broker.compaction.conftest import (
    RealLogs,
    Topics,
    batch,
    compact,
    compacted,
    publish,
    read_view,
    single,
)


async def test_the_last_value_of_each_key_is_read_and_what_came_after_from_the_log(
    open_topic: Topics,
) -> None:
    topic = await open_topic()
    await publish(topic, single("a", "1"))
    second = await publish(topic, batch([("a", "2"), ("b", "1"), (None, "x"), ("c", "1")]), 4)
    third = await publish(topic, batch([("b", "2"), ("c", "")], CompressionType.ZSTD), 2)
    await compact(topic)
    assert await read_view(topic) == [(second, 0, "a", "2"), (third, 0, "b", "2")]
    after = await publish(topic, single("a", "3"))
    assert await read_view(topic) == [(second, 0, "a", "2"), (third, 0, "b", "2"), (after, -1, "a", "3")]
    assert await read_view(topic, after) == [(after, -1, "a", "3")]
    await compact(topic)
    assert await read_view(topic) == [(third, 0, "b", "2"), (after, -1, "a", "3")]
    assert topic.stats()["compaction"]["lastCompactionRemovedEventCount"] == 1
    assert topic.internal_stats()["compactedLedger"]["entries"] == 2


async def test_messages_without_a_key_stay_where_that_is_wanted(open_topic: Topics) -> None:
    topic = await open_topic(compaction_retain_keyless=True)
    first = await publish(topic, batch([(None, "x"), ("a", "1")]), 2)
    second = await publish(topic, single(None, "y"))
    third = await publish(topic, single("a", "2"))
    await compact(topic)
    assert await read_view(topic) == [(first, 0, None, "x"), (second, -1, None, "y"), (third, -1, "a", "2")]


async def test_the_compacted_view_outlives_the_ledgers_it_was_made_from(open_topic: Topics) -> None:
    topic = await open_topic()
    for number in range(30):
        await publish(topic, single(f"k{number % 4}", str(number)))
    view = [f"k{number % 4}" for number in range(26, 30)]
    await compact(topic)
    await topic.ledger.roll()
    await topic.ledger.trim()
    assert topic.ledger.number_of_entries == 0
    assert [key for _, _, key, _ in await read_view(topic)] == view
    # Another run takes what is there from the compacted ledger alone.
    last = await publish(topic, single("k2", "new"))
    await compact(topic)
    assert [(key, value) for _, _, key, value in await read_view(topic)] == [
        ("k3", "27"), ("k0", "28"), ("k1", "29"), ("k2", "new"),
    ]  # fmt: skip
    assert await topic.compaction.last_message_id(await topic.last_message_id()) == MessageId(
        last.ledger_id, last.entry_id, -1, -1
    )


async def test_the_last_message_is_one_that_can_be_read(open_topic: Topics) -> None:
    topic = await open_topic()
    await publish(topic, batch([("a", "1"), ("b", "1"), ("c", "1")]), 3)
    kept = await publish(topic, batch([("a", "2"), ("b", "2"), ("c", "2")]), 3)
    await publish(topic, batch([("c", ""), ("d", "")]), 2)
    await compact(topic)
    last = await topic.compaction.last_message_id(await topic.last_message_id())
    assert last == MessageId(kept.ledger_id, kept.entry_id, -1, 1)
    await publish(topic, batch([("a", ""), ("b", "")]), 2)
    await compact(topic)
    assert (await topic.compaction.last_message_id(await topic.last_message_id())).entry_id == -1
    assert await read_view(topic) == []


async def test_a_second_run_at_the_same_time_is_refused(open_topic: Topics) -> None:
    topic = await open_topic()
    await publish(topic, single("a", "1"))
    topic.compaction.start()
    with pytest.raises(CompactionRunning):
        topic.compaction.start()
    await compacted(topic)
    assert topic.compaction.status == "SUCCESS"


async def test_old_compacted_ledgers_go_and_with_the_topic_the_last(
    open_topic: Topics, logs: RealLogs
) -> None:
    topic = await open_topic()
    ledgers = set()
    for number in range(3):
        await publish(topic, single("a", str(number)))
        await compact(topic)
        ledgers.add(topic.internal_stats()["compactedLedger"]["ledgerId"])
    assert len(ledgers) == 3
    assert len(ledgers & set(await logs.client.list())) == 1
    await topic.context.ledgers.delete(topic.name.managed_ledger_name)
    assert not ledgers & set(await logs.client.list())


async def test_a_topic_that_is_not_to_be_compacted_any_more(open_topic: Topics, logs: RealLogs) -> None:
    """As in Pulsar, deleting the subscription `__compaction` ends it. Whoever reads compacted reads the log."""
    topic = await open_topic()
    await publish(topic, single("a", "1"))
    last = await publish(topic, single("a", "2"))
    await compact(topic)
    held = topic.internal_stats()["compactedLedger"]["ledgerId"]
    await topic.delete_subscription("__compaction")
    assert held not in await logs.client.list()
    assert topic.internal_stats()["compactedLedger"]["ledgerId"] == -1
    assert [value for *_, value in await read_view(topic)] == ["1", "2"]
    await topic.ledger.roll()
    await topic.ledger.trim()
    assert topic.ledger.number_of_entries == 0
    with pytest.raises(SubscriptionNotFound):
        await topic.delete_subscription("__compaction")
    await compact(topic)
    assert topic.compaction.horizon >= last


async def test_a_log_that_is_truncated_while_it_is_compacted_is_not_compacted_wrongly(
    open_topic: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await open_topic()
    for number in range(20):
        await publish(topic, single(f"k{number % 3}" if number < 19 else "last", str(number)))
    write = Compactor.write

    async def write_of_what_is_left(self: Compactor, writer: LedgerWriter) -> Outcome:
        await topic.compaction.let_go()
        await topic.ledger.trim()
        return await write(self, writer)

    with monkeypatch.context() as patch:
        patch.setattr(Compactor, "write", write_of_what_is_left)
        topic.compaction.start()
        await compacted(topic)
    assert 0 < topic.ledger.number_of_entries < 20
    assert topic.compaction.status == "ERROR"
    await topic.context.tasks.drain()
    await compact(topic)
    assert [value for *_, value in await read_view(topic)] == ["16", "17", "18", "19"]


async def test_what_a_run_names_stays_named_while_old_ledgers_are_deleted(
    open_topic: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a run of hours may find its ledger deleted as one that nobody names."""
    topic = await open_topic()
    await publish(topic, single("a", "1"))
    await compact(topic)
    holds = topic.internal_stats()["compactedLedger"]["ledgerId"]
    await topic.compaction._change({}, name=10**6)
    going_on, deleting = asyncio.Event(), asyncio.Event()

    async def delete(ledger_id: int) -> None:
        assert ledger_id == 10**6
        deleting.set()
        await going_on.wait()

    monkeypatch.setattr(topic.ledger.client, "delete", delete)
    leftovers = asyncio.create_task(topic.compaction._delete_leftovers())
    await deleting.wait()
    await topic.compaction._change({}, name=10**6 + 1)
    going_on.set()
    await leftovers
    named = topic.ledger.cursors["__compaction"].cursor_properties[KEPT_LEDGERS]
    assert named == f"{holds},{10**6 + 1}"


@pytest.mark.parametrize(
    "point",
    [
        "compaction.keys_known",
        "compaction.before_named",
        "compaction.writing",
        "compaction.written",
        "compaction.switched",
        "compaction.mark_moved",
        "compaction.old_deleted",
    ],
)
async def test_a_run_that_is_cut_short_is_done_or_undone(
    open_topic: Topics, logs: RealLogs, point: str
) -> None:
    """At each step: what is read is right, before and after the topic is loaded anew, and no ledger is left behind."""
    topic = await open_topic()
    for number in range(10):
        await publish(topic, single(f"k{number % 3}", str(number)))
    await compact(topic)
    for number in range(10, 20):
        await publish(topic, single(f"k{number % 3}", str(number)))
    whole = ["17", "18", "19"]

    class Cut(Exception):
        pass

    def cut(name: str) -> None:
        if name == point:
            raise Cut

    crash.observe(cut)
    try:
        topic.compaction.start()
        await compacted(topic)
    finally:
        crash.observe(None)
    assert topic.compaction.status == "ERROR"
    for _ in range(2):
        assert [value for _, _, _, value in await read_view(topic) if value in whole] == whole
        topic = await open_topic.anew(topic)
    holds = topic.internal_stats()["compactedLedger"]["ledgerId"]
    assert topic.ledger.cursors["__compaction"].cursor_properties[KEPT_LEDGERS] == str(holds)
    await compact(topic)
    assert [value for _, _, _, value in await read_view(topic)] == whole
    await topic.context.tasks.drain()
    own = topic.ledger.cursors["__compaction"].ledger_id
    others = {each for each in await logs.client.list() if each not in topic.ledger.ledgers and each != own}
    assert others == {topic.internal_stats()["compactedLedger"]["ledgerId"]}
