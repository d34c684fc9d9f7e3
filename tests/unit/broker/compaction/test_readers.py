"""What clients that read compacted are sent, frame by frame; and what transactions leave for compaction."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from magnetar.broker.compaction.reading import CompactedReading
from magnetar.broker.compaction.state import COMPACTION_CURSOR
from magnetar.broker.subscription import Subscription
from magnetar.broker.transactions.txn_id import TxnId
from magnetar.managed_ledger import Position
from magnetar.protocol import ack_sets
from magnetar.protocol.pulsar_pb2 import CommandAck, CommandSubscribe, MessageIdData, ServerError
from tests.unit.broker.compaction.conftest import (
    NAME,
    Topics,
    batch,
    compact,
    publish,
    read_view,
    single,
)
from tests.unit.broker.raw_client import RawClient


@pytest.fixture
async def raw(open_topic: Topics) -> AsyncIterator[RawClient]:
    await open_topic()
    assert open_topic.broker is not None
    client = await RawClient.open(int(open_topic.broker.service_url.rpartition(":")[2]))
    yield client
    await client.close()


async def _cut_batch(open_topic: Topics) -> None:
    topic = await open_topic()
    await publish(topic, batch([("a", "1"), ("b", "1"), ("c", "1"), ("a", "2")]), 4)
    await publish(topic, single("c", "2"))
    await compact(topic)


@pytest.mark.parametrize(
    ("version", "durable", "told"),
    [
        ("Pulsar-Java-v4.0.6", True, True),
        ("Pulsar-CPP-v4.2.0", True, False),
        ("Pulsar-CPP-v4.2.0", False, True),
    ],
)
async def test_which_messages_are_gone_is_told_where_that_does_no_harm(
    open_topic: Topics, raw: RawClient, version: str, durable: bool, told: bool
) -> None:
    await _cut_batch(open_topic)
    await raw.handshake(version)
    await raw.subscribe(NAME, durable=durable, read_compacted=True, permits=100)
    (first, _), (second, _) = await raw.messages(2)
    assert list(first.ack_set) == ([0b1010] if told else [])
    assert list(second.ack_set) == []
    last = await raw.ask("getLastMessageId", "getLastMessageIdResponse", consumer_id=1)
    assert last.last_message_id.entryId == second.message_id.entryId


async def test_what_is_gone_need_not_be_acknowledged(open_topic: Topics, raw: RawClient) -> None:
    """Member by member, in the order of no order: in the end nothing is left, and the log may go."""
    await _cut_batch(open_topic)
    topic = await open_topic()
    await raw.handshake("Pulsar-Java-v4.0.6")
    await raw.subscribe(NAME, kind=CommandSubscribe.Failover, read_compacted=True, permits=100)
    (first, _), (second, _) = await raw.messages(2)
    subscription = topic.subscriptions["sub"]
    assert isinstance(subscription, Subscription)

    async def acknowledge(message: MessageIdData) -> None:
        await raw.ask(
            "ack", "ackResponse", consumer_id=1, ack_type=CommandAck.Individual, message_id=[message]
        )

    await acknowledge(second.message_id)
    assert not subscription.caught_up
    everything = ack_sets.all_unacked(4)
    for index in (3, 1):
        left = ack_sets.without(everything, [index])
        data = MessageIdData(
            ledgerId=first.message_id.ledgerId, entryId=first.message_id.entryId, ack_set=left
        )
        await acknowledge(data)
    assert subscription.caught_up


async def test_reading_compacted_is_for_one_consumer_at_a_time(open_topic: Topics, raw: RawClient) -> None:
    await raw.handshake()
    for kind in (CommandSubscribe.Shared, CommandSubscribe.Key_Shared):
        error = await raw.ask(
            "subscribe",
            "error",
            topic=NAME,
            subscription="s",
            subType=kind,
            consumer_id=9,
            read_compacted=True,
        )
        assert error.error == ServerError.NotAllowedError
    reserved = await raw.ask(
        "subscribe", "error", topic=NAME, subscription=COMPACTION_CURSOR, subType=0, consumer_id=9
    )
    assert reserved.message


async def test_aborted_messages_leave_the_value_before_and_open_ones_wait(open_topic: Topics) -> None:
    topic = await open_topic()
    buffer = await topic.with_transactions()

    async def within(number: int, key: str, value: str) -> None:
        data = single(key, value, txnid_most_bits=1, txnid_least_bits=number)
        buffer.stored(TxnId(1, number), await publish(topic, data))

    await publish(topic, single("a", "before"))
    await publish(topic, single("b", "before"))
    await within(1, "a", "aborted")
    await buffer.end(TxnId(1, 1), commit=False, watermark=0)
    await within(2, "b", "committed")
    await buffer.end(TxnId(1, 2), commit=True, watermark=0)
    await within(3, "a", "open")
    await publish(topic, single("c", "behind"))
    await compact(topic)
    assert topic.compaction.horizon < topic.ledger.last_confirmed
    compacted = topic.compaction.current
    assert compacted is not None
    found = await compacted.read(0, 10, 1 << 20)
    assert [each.entry.data[-6:] for each in found] == [b"before", b"mitted"]
    await buffer.end(TxnId(1, 3), commit=True, watermark=0)
    await compact(topic)
    values = [(key, value) for _, _, key, value in await read_view(topic) if key is not None]
    assert sorted(values) == [("a", "open"), ("b", "committed"), ("c", "behind")]


async def test_what_was_handed_out_and_is_gone_before_it_comes_again_holds_up_nothing(
    open_topic: Topics,
) -> None:
    """A consumer is lost with messages that it had not acknowledged; compaction takes one of them, skipping another."""
    topic = await open_topic()
    for key in ("a", "b", "c"):
        await publish(topic, single(key, "1"))
    await compact(topic)
    cursor = await topic.ledger.open_cursor("sub", initial="earliest")
    reading = CompactedReading(topic.compaction, topic.ledger, cursor, None)

    async def read() -> list[Position]:
        return [entry.position for entry in await reading.read(10, 1 << 20)]

    def acknowledge(position: Position) -> None:
        cursor.acknowledge([(position, None)])
        reading.acknowledged([(position, None)])

    _, acknowledged, skipped = await read()
    acknowledge(acknowledged)
    await publish(topic, single("a", "2"))
    await compact(topic)
    reading.rewind()
    cursor.acknowledge([(skipped, None)])  # By an administrator.
    (last,) = await read()
    acknowledge(last)
    assert cursor.backlog == 0
    await cursor.close()
