"""Transactions where something else happens to the topic or the subscription meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from magnetar.broker.broker import Broker
from magnetar.broker.errors import BrokerError
from magnetar.broker.persistent_topic import EPOCH_PROPERTY
from magnetar.broker.transactions.buffer import BUFFER_CURSOR
from magnetar.broker.transactions.pending_ack_store import PENDING_ACKS_PROPERTY, pending_ack_log
from magnetar.broker.transactions.txn_id import TxnId
from magnetar.managed_ledger import Entry, Position
from magnetar.managed_ledger.errors import EntryUnreadable, StorageUnavailable
from magnetar.naming import TopicName
from magnetar.protocol.pulsar_pb2 import ABORT, CommandSubscribe, ServerError
from tests.unit.broker.memory_log import MemoryLogs
from tests.unit.broker.raw_client import RawClient, until
from tests.unit.broker.test_transactions import (
    TOPIC,
    Connect,
    ack_in,
    add_partition,
    add_subscription,
    begin,
    end,
    payloads,
    send_in,
    topic_of,
)


async def held(client: RawClient, count: int = 2) -> tuple[Any, list[Any]]:
    """A transaction that holds the first `count` of three messages of a shared subscription."""
    await client.produce(TOPIC)
    await client.subscribe(TOPIC, kind=CommandSubscribe.Shared, permits=100)
    for number in range(3):
        client.send(b"%d" % number, number)
    places = [body.message_id for body, _ in await client.messages(3)]
    txn = await begin(client)
    await add_subscription(client, txn)
    assert not (await ack_in(client, txn, *places[:count])).HasField("error")
    return txn, places


async def test_a_subscription_that_was_moved_holds_nothing(broker: Broker, connect: Connect) -> None:
    client = await connect()
    txn, _ = await held(client)
    await client.ask("seek", consumer_id=1, message_publish_time=0)
    await client.expect("close_consumer")
    await client.subscribe(TOPIC, kind=CommandSubscribe.Shared, permits=100)
    assert payloads(await client.messages(3)) == [b"0", b"1", b"2"]
    assert not (await end(client, txn)).HasField("error")
    assert topic_of(broker).subscriptions["sub"].cursor.backlog == 3


async def test_what_is_held_for_a_deleted_subscription_goes_with_it(
    broker: Broker, connect: Connect, logs: MemoryLogs
) -> None:
    client = await connect()
    txn, _ = await held(client)
    log = pending_ack_log(TopicName.parse(TOPIC), "sub").managed_ledger_name
    assert log in logs.logs
    await client.ask("unsubscribe", consumer_id=1)
    assert log not in logs.logs
    assert not (await end(client, txn)).HasField("error")


async def test_a_subscription_that_is_no_more_after_the_topic_is_deleted_leaves_no_log(
    broker: Broker, connect: Connect, logs: MemoryLogs
) -> None:
    client = await connect()
    await held(client)
    await broker.topics.delete(TopicName.parse(TOPIC), force=True)
    assert not [name for name in logs.logs if name.startswith("public/default")]


async def test_a_transaction_ends_on_a_topic_that_takes_nothing_more(
    start_broker: Any, connect: Connect
) -> None:
    broker = await start_broker()
    client = await connect(to=broker)
    await client.produce(TOPIC)
    kept, dropped = await begin(client), await begin(client)
    for sequence_id, txn in enumerate((kept, dropped)):
        await add_partition(client, txn)
        send_in(client, txn, b"%d" % sequence_id, sequence_id)
        await client.expect("send_receipt")
    await topic_of(broker).terminate()
    assert not (await end(client, kept)).HasField("error")
    assert not (await end(client, dropped, ABORT)).HasField("error")
    store = broker.context.metadata
    await broker.stop()
    client = await connect(to=await start_broker(store=store))  # There is no marker that could tell.
    await client.subscribe(TOPIC, permits=10)
    assert payloads(await client.messages(1)) == [b"0"]
    await client.hears_nothing("message")


async def test_an_end_that_no_marker_tells_is_stored_before_it_is_answered(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await connect()
    await client.produce(TOPIC)
    txn = await begin(client)
    await add_partition(client, txn)
    send_in(client, txn, b"one", 0)
    await client.expect("send_receipt")
    topic = topic_of(broker)
    await topic.terminate()
    assert topic.transactions is not None
    cursor = topic.ledger.cursors[BUFFER_CURSOR]

    async def fail() -> None:
        raise StorageUnavailable("log", "away")

    with monkeypatch.context() as away:
        away.setattr(cursor, "flush", fail)
        for _ in range(2):  # Whoever asks again is not told that it is done.
            with pytest.raises(StorageUnavailable):
                await topic.transactions.end(TxnId(*txn), commit=True, watermark=0)
    for flushes in (1, 0):
        before = cast(Any, cursor).flushes
        await topic.transactions.end(TxnId(*txn), commit=True, watermark=0)
        assert cast(Any, cursor).flushes == before + flushes


async def test_what_no_coordinator_knows_of_is_aborted_once_it_says_so(
    broker: Broker, connect: Connect
) -> None:
    """A client sends in a transaction without telling the coordinator that it will."""
    client = await connect()
    await client.produce(TOPIC)
    await client.subscribe(TOPIC, permits=10)
    unknown, known = await begin(client), await begin(client)
    send_in(client, unknown, b"never", 0)
    await client.expect("send_receipt")
    assert not (await end(client, unknown)).HasField("error")
    client.send(b"plain", 1)
    await client.hears_nothing("message")
    await add_partition(client, known)
    assert not (await end(client, known)).HasField("error")  # Tells the low watermark.
    broker.tick()
    assert payloads(await client.messages(1)) == [b"plain"]
    await client.hears_nothing("message")
    send_in(client, unknown, b"late", 2)
    assert (await client.expect("send_error")).error == ServerError.NotAllowedError


async def test_what_is_given_back_by_an_abort_keeps_to_permits_and_counts_once(
    broker: Broker, connect: Connect
) -> None:
    client = await connect()
    txn, places = await held(client)
    other = await connect()
    await other.subscribe(TOPIC, kind=CommandSubscribe.Shared, permits=1)
    await client.close()
    assert payloads(await other.messages(1)) == [b"2"]
    assert not (await end(other, txn, ABORT)).HasField("error")
    await other.hears_nothing("message")
    other.flow(1)
    assert payloads(await other.messages(1)) == [b"0"]
    await other.hears_nothing("message")
    other.flow(10)
    assert payloads(await other.messages(1)) == [b"1"]
    await other.hears_nothing("message")
    other.ack(*((each.ledgerId, each.entryId) for each in places))
    await until(lambda: topic_of(broker).subscriptions["sub"].cursor.backlog == 0)


async def test_a_reader_takes_no_part(connect: Connect) -> None:
    client = await connect()
    await client.produce(TOPIC)
    await client.subscribe(TOPIC, durable=False, permits=10)
    client.send(b"one", 0)
    ((message, _),) = await client.messages(1)
    txn = await begin(client)
    assert (await ack_in(client, txn, message.message_id)).error == ServerError.NotAllowedError


async def test_a_producers_epoch_does_not_make_held_acknowledgements_forgotten(
    broker: Broker, connect: Connect
) -> None:
    """Both are told by properties of the topic's log: that of one may be written while the other's is on its way."""
    client = await connect()
    await client.produce(TOPIC)
    topic = topic_of(broker)
    await asyncio.gather(topic.ledger.put_property(PENDING_ACKS_PROPERTY, "1"), topic.store_epoch(7))
    assert dict(topic.ledger.properties) == {PENDING_ACKS_PROPERTY: "1", EPOCH_PROPERTY: "7"}


@pytest.mark.parametrize("logs", [MemoryLogs(entries_per_ledger=2)])
async def test_the_last_message_may_lie_in_the_ledger_before_an_open_transaction(
    broker: Broker, connect: Connect, logs: MemoryLogs
) -> None:
    client = await connect()
    await client.produce(TOPIC)
    for number in range(2):
        client.send(b"%d" % number, number)
        last = (await client.expect("send_receipt")).message_id
    txn = await begin(client)
    await add_partition(client, txn)
    send_in(client, txn, b"open", 2)
    first = (await client.expect("send_receipt")).message_id
    assert (first.ledgerId, first.entryId) == (last.ledgerId + 1, 0)
    assert (await topic_of(broker).last_message_id())[:2] == (last.ledgerId, last.entryId)


async def test_that_the_last_message_cannot_be_read_now_does_not_mean_that_there_is_none(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await connect()
    await client.produce(TOPIC)
    client.send(b"one", 0)
    place = (await client.expect("send_receipt")).message_id
    topic = topic_of(broker)

    async def read_entry(position: Position) -> Entry:
        raise EntryUnreadable("log", "bookies away")

    with monkeypatch.context() as away:
        away.setattr(topic.ledger, "read_entry", read_entry)
        with pytest.raises(BrokerError):
            await topic.last_message_id()
    assert (await topic.last_message_id())[:2] == (place.ledgerId, place.entryId)
    topic.ledger.append((b"no message",), 1, lambda *_: None)  # Nobody is ever given it.
    await asyncio.sleep(0)
    assert topic.ledger.number_of_entries == 2
    assert (await topic.last_message_id())[:2] == (place.ledgerId, place.entryId)


async def test_a_subscription_made_anew_never_finds_what_was_held_for_its_namesake(
    broker: Broker, connect: Connect, logs: MemoryLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what was acknowledged once would be acknowledged on the new one, that begins at the beginning."""
    client = await connect()
    await held(client)
    topic = topic_of(broker)

    async def fail(name: str) -> None:
        raise StorageUnavailable(name, "away")

    with monkeypatch.context() as away:
        away.setattr(topic.context.ledgers, "delete", fail)
        with pytest.raises(StorageUnavailable):
            await topic.delete_subscription("sub", force=True)
    assert pending_ack_log(TopicName.parse(TOPIC), "sub").managed_ledger_name in logs.logs
    assert "sub" in topic.ledger.cursors
    for name in list(logs.logs):  # As if it were gone after all, by the time it is asked for again.
        if name == pending_ack_log(TopicName.parse(TOPIC), "sub").managed_ledger_name:
            await logs.delete(name)
    await topic.delete_subscription("sub", force=True)
    assert "sub" not in topic.ledger.cursors


async def test_a_coordinator_takes_no_messages(connect: Connect) -> None:
    client = await connect()
    await begin(client)
    topic = "persistent://pulsar/system/transaction_coordinator_assign-partition-0"
    refused = await client.ask("producer", "producer_success", topic=topic, producer_id=1)
    assert refused.error == ServerError.NotAllowedError
    refused = await client.ask(
        "subscribe", topic=topic, subscription="s", subType=CommandSubscribe.Exclusive, consumer_id=1
    )
    assert refused.error == ServerError.NotAllowedError


async def test_so_many_transactions_and_no_more(start_broker: Any, connect: Connect) -> None:
    client = await connect(to=await start_broker(transactions_per_coordinator_max=2))
    first, _ = await begin(client), await begin(client)
    refused = await client.ask("newTxn", "newTxnResponse", tc_id=0, txn_ttl_millis=1000)
    assert refused.error == ServerError.TooManyRequests
    assert not (await end(client, first)).HasField("error")
    await begin(client)
    refused = await client.ask("newTxn", "newTxnResponse", tc_id=1)
    assert refused.error == ServerError.NotAllowedError  # Without an end to it.


async def test_logs_are_replaced_by_snapshots(start_broker: Any, connect: Connect) -> None:
    broker = await start_broker(transaction_log_snapshot_records=8)
    client = await connect(to=broker)
    await client.produce(TOPIC)
    await client.subscribe(TOPIC, kind=CommandSubscribe.Shared, permits=100)
    open_ = await begin(client)
    await add_subscription(client, open_)
    client.send(b"held", 0)
    ((message, _),) = await client.messages(1)
    assert not (await ack_in(client, open_, message.message_id)).HasField("error")
    for number in range(10):
        txn = await begin(client)
        await add_subscription(client, txn)
        client.send(b"%d" % number, number + 1)
        ((each, _),) = await client.messages(1)
        assert not (await ack_in(client, txn, each.message_id)).HasField("error")
        assert not (await end(client, txn, ABORT if number == 9 else 0)).HasField("error")
    store = broker.context.metadata
    subscription = topic_of(broker).subscriptions["sub"]
    assert subscription.pending_acks is not None
    assert subscription.pending_acks.records.since_snapshot < 16
    (coordinator,) = broker.transactions.coordinators()
    assert coordinator.records.since_snapshot < 16
    await broker.stop()
    again = await start_broker(store=store)
    client = await connect(to=again)
    await client.subscribe(TOPIC, kind=CommandSubscribe.Shared, permits=100)
    assert payloads(await client.messages(1)) == [b"9"]
    await client.hears_nothing("message")
    await begin(client)
    (coordinator,) = again.transactions.coordinators()
    assert coordinator.state.get(TxnId(*open_)).subscriptions == {(TOPIC, "sub"): None}
    assert not (await end(client, open_, ABORT)).HasField("error")
    assert payloads(await client.messages(1)) == [b"held"]
