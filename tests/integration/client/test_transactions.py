"""Transactions from end to end: our client, the broker, the real log, and restarts in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from magnetar.client import Client
from magnetar.client.blocking import BlockingClient
from magnetar.client.consumer import Consumer
from magnetar.client.errors import (
    InvalidUse,
    TransactionConflict,
    TransactionEnded,
    TransactionFailed,
)
from magnetar.client.outgoing import OutgoingMessage
from magnetar.client.transactions import TransactionState
from magnetar.protocol.ids import MessageId
from tests.integration.broker.conftest import BrokerUnderTest

pytestmark = pytest.mark.integration

QUIET_S = 0.3


async def received(consumer: Consumer, count: int) -> list[bytes]:
    """The payloads of the next `count` messages, none of them acknowledged."""
    found: list[bytes] = []
    for _ in range(count):
        message = await consumer.receive(10)
        assert message is not None, found
        found.append(message.data)
    return found


async def test_a_transaction_moves_a_message_from_one_topic_to_another(client: Client, topic: str) -> None:
    source = await client.subscribe(topic, "worker", type="shared", negative_ack_delay_s=0.1)
    results = await client.subscribe(topic + "-results", "reader")
    await (await client.create_producer(topic)).send(b"work")
    producer = await client.create_producer(topic + "-results")

    async def fail_half_way() -> None:
        async with client.transaction(timeout_s=30) as txn:
            message = await source.receive(10)
            assert message is not None
            await producer.send(b"half", transaction=txn)
            await source.acknowledge(message, transaction=txn)
            raise RuntimeError("the work failed")

    with pytest.raises(RuntimeError, match="the work failed"):
        await fail_half_way()
    async with client.transaction(timeout_s=30) as txn:
        message = await source.receive(10)  # It came again.
        assert message is not None
        assert message.data == b"work"
        await producer.send(b"whole", transaction=txn)
        assert await results.receive(QUIET_S) is None
        await source.acknowledge(message, transaction=txn)
    assert await received(results, 1) == [b"whole"]
    assert await results.receive(QUIET_S) is None
    assert await source.receive(QUIET_S) is None


async def test_batches_keys_and_partitions_belong_to_transactions_too(client: Client, topic: str) -> None:
    consumer = await client.subscribe(topic, "s", type="key_shared", initial="earliest")
    producer = await client.create_producer(topic, batching_max_delay_ms=50)
    txn, other = await client.begin_transaction(), await client.begin_transaction()
    with pytest.raises(InvalidUse, match="join_topic"):
        producer.send_batch_nowait([b"too early"], transaction=txn)
    sent = []
    for number in range(20):  # In turns: no batch may hold messages of two transactions.
        if number == 5:
            await txn.join_topic(topic)
            await other.join_topic(topic)
        within = (txn, other, None)[number % 3]
        sent.append(
            producer.send_nowait(b"%d" % number, key=str(number % 4), sequence_id=None, transaction=within)
        )
    sent_together = asyncio.gather(*sent)
    batch = await producer.send_batch_nowait(
        [OutgoingMessage(b"x", key="k"), OutgoingMessage(b"y", key="k")], transaction=txn
    )
    await producer.flush()
    ids = await sent_together
    assert len(batch) == 2
    assert len({id_[:2] for id_ in ids}) > 3
    await txn.commit()
    await other.abort()
    wanted = {b"%d" % number for number in range(20) if number % 3 != 1} | {b"x", b"y"}
    assert set(await received(consumer, len(wanted))) == wanted
    assert await consumer.receive(QUIET_S) is None


async def test_single_messages_of_a_batch_are_acknowledged_in_transactions(
    client: Client, topic: str
) -> None:
    consumer = await client.subscribe(topic, "s", type="shared")
    producer = await client.create_producer(topic)
    await producer.send_batch_nowait([b"a", b"b", b"c"])
    messages = [await consumer.receive(10) for _ in range(3)]
    kept, dropped = await client.begin_transaction(), await client.begin_transaction()
    assert messages[0] is not None
    assert messages[1] is not None
    await consumer.acknowledge(messages[0], transaction=kept)
    await consumer.acknowledge(messages[1], transaction=dropped)
    with pytest.raises(TransactionConflict):
        await consumer.acknowledge(messages[0], transaction=dropped)
    with pytest.raises(TransactionFailed):
        await dropped.commit()  # A part of it failed: all of it does.
    await kept.commit()
    await consumer.close()
    again = await client.subscribe(topic, "s", type="shared")
    assert await received(again, 2) == [b"b", b"c"]
    assert await again.receive(QUIET_S) is None


async def test_a_transaction_whose_time_is_over_cannot_be_committed(client: Client, topic: str) -> None:
    consumer = await client.subscribe(topic, "s")
    producer = await client.create_producer(topic)
    txn = await client.begin_transaction(timeout_s=0.2)
    await producer.send(b"never", transaction=txn)
    await producer.send(b"plain")
    assert await received(consumer, 1) == [b"plain"]
    with pytest.raises(TransactionEnded):
        await txn.commit()
    assert txn.state is TransactionState.ABORTED
    with pytest.raises(TransactionEnded):
        await producer.send(b"late", transaction=txn)


async def test_readers_and_last_message_ids_know_nothing_of_what_is_open(client: Client, topic: str) -> None:
    producer = await client.create_producer(topic)
    first = await producer.send(b"first")
    reader = await client.create_reader(topic, MessageId.EARLIEST)
    txn = await client.begin_transaction()
    await producer.send(b"second", transaction=txn)
    assert (await reader.read(10)).data == b"first"  # type: ignore[union-attr]
    assert not await reader.has_message_available()
    assert (await reader.get_last_message_id())[:2] == first[:2]
    await txn.commit()
    assert await reader.has_message_available()
    assert (await reader.read(10)).data == b"second"  # type: ignore[union-attr]
    assert not await reader.has_message_available()
    aborted = await client.begin_transaction()
    await producer.send(b"third", transaction=aborted)
    await aborted.abort()
    assert not await reader.has_message_available()


def test_without_await(platform: BrokerUnderTest, topic: str) -> None:
    with BlockingClient(platform.url) as client:
        consumer = client.subscribe(topic, "s", type="shared")
        producer = client.create_producer(topic)
        with client.transaction(timeout_s=30) as txn:
            producer.send(b"one", transaction=txn)
            producer.send_batch([b"two", b"three"], transaction=txn)
            assert consumer.receive(QUIET_S) is None
        messages = [consumer.receive(10) for _ in range(3)]
        assert [each.data for each in messages if each] == [b"one", b"two", b"three"]
        with client.transaction() as txn:
            for message in messages:
                assert message is not None
                consumer.acknowledge(message, transaction=txn)
        assert txn.state is TransactionState.COMMITTED


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[BrokerUnderTest]:
    """One that this test may stop and start."""
    broker = BrokerUnderTest(
        tmp_path, None, transaction_log_snapshot_records=20, transaction_buffer_snapshot_entries=5
    ).start()
    yield broker
    broker.stop()


def restart(platform: BrokerUnderTest) -> None:
    platform.stop()
    platform.start()


@pytest.fixture
async def its_client(alone: BrokerUnderTest) -> AsyncIterator[Client]:
    client = Client(alone.url, operation_timeout_s=20.0, backoff_maximum_s=0.3)
    yield client
    await client.close()


async def test_a_restart_in_the_middle_changes_nothing(
    alone: BrokerUnderTest, its_client: Client, topic: str
) -> None:
    """Many transactions, so that every log is replaced by snapshots; each third stays open over the restart."""
    client = its_client
    consumer = await client.subscribe(topic, "s", type="shared", initial="earliest")
    producer = await client.create_producer(topic)
    open_, wanted = [], []
    for number in range(60):
        txn = await client.begin_transaction(timeout_s=60)
        await producer.send(b"%d" % number, transaction=txn)
        if number % 3 == 0 and number < 12:
            open_.append(txn)
        elif number % 3 == 1:
            await txn.abort()
        else:
            wanted.append(b"%d" % number)
            await txn.commit()
    assert await consumer.receive(QUIET_S) is None  # The first of all is still open.
    await asyncio.to_thread(restart, alone)
    for txn in open_:
        await txn.commit()
    wanted += [b"%d" % number for number in (0, 3, 6, 9)]
    messages = [await consumer.receive(10) for _ in wanted]
    assert sorted(each.data for each in messages if each) == sorted(wanted)
    assert await consumer.receive(QUIET_S) is None
    half = await client.begin_transaction(timeout_s=60)
    for message in messages:
        assert message is not None
        if message.data == wanted[0]:
            consumer.acknowledge(message)
        else:
            await consumer.acknowledge(message, transaction=half)
    await asyncio.to_thread(restart, alone)
    assert await consumer.receive(QUIET_S) is None
    await half.abort()
    assert sorted(await received(consumer, len(wanted) - 1)) == sorted(wanted[1:])
