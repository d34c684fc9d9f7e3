"""Consumers: what they get, what they acknowledge, what they give back, where they seek."""

from __future__ import annotations

from typing import Any

import pytest

from magnetar.broker.broker import Broker
from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.naming import TopicName
from magnetar.protocol.ids import to_unsigned
from magnetar.protocol.message import split_message
from magnetar.protocol.pulsar_pb2 import (
    AUTO_SPLIT,
    STICKY,
    CommandSubscribe,
    IntRange,
    KeySharedMeta,
    KeyValue,
    MessageIdData,
)
from tests.unit.broker.conftest import Connect, StartBroker
from tests.unit.broker.memory_log import MemoryLogs
from tests.unit.broker.raw_client import RawClient, until

TOPIC = "persistent://public/default/t"
EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = (
    CommandSubscribe.Exclusive,
    CommandSubscribe.Shared,
    CommandSubscribe.Failover,
    CommandSubscribe.Key_Shared,
)
CONSUMER_BUSY, METADATA, NOT_ALLOWED, ASSIGN, PRODUCER_BUSY = 5, 1, 22, 19, 16


def payload(data: bytes) -> bytes:
    return bytes(split_message(data).payload)


async def published(connect: Connect, count: int, **options: object) -> RawClient:
    """A client that has published `count` messages, m0, m1, …"""
    client = await connect(**options)
    await client.produce(TOPIC, 100)
    for number in range(count):
        client.send(b"m%d" % number, number, 100)
        await client.expect("send_receipt")
    return client


async def received(client: RawClient, count: int) -> list[bytes]:
    return [payload(data) for _, data in await client.messages(count)]


async def test_nothing_comes_before_permits_and_no_more_than_they_allow(connect: Connect) -> None:
    client = await published(connect, 5)
    await client.subscribe(TOPIC)
    await client.hears_nothing("message")
    client.flow(2)
    assert await received(client, 2) == [b"m0", b"m1"]
    await client.hears_nothing("message")
    client.flow(10)
    assert await received(client, 3) == [b"m2", b"m3", b"m4"]


async def test_a_batch_costs_as_many_permits_as_it_has_messages(connect: Connect) -> None:
    client = await connect()
    await client.produce(TOPIC, 100)
    for first in (0, 10, 20):
        client.send_batch([b"x"] * 10, first, 100)
        await client.expect("send_receipt")
    await client.subscribe(TOPIC, permits=1)
    await client.messages(1)  # Nine below zero now.
    client.flow(9)
    await client.hears_nothing("message")
    client.flow(1)
    await client.messages(1)
    await client.hears_nothing("message")


async def test_message_ids_carry_partition_and_no_batch_index(connect: Connect, broker: Broker) -> None:
    await broker.context.resources.create_partitioned(TopicName.parse(TOPIC), 2)
    client = await connect()
    partition = f"{TOPIC}-partition-1"
    await client.produce(partition, 100)
    client.send(b"a", 0, 100)
    await client.subscribe(partition, permits=1)
    message = await client.expect("message")
    assert message.message_id.partition == 1
    assert not message.message_id.HasField("batch_index")
    assert not message.HasField("redelivery_count")
    assert not message.HasField("consumer_epoch")


async def test_a_second_exclusive_consumer_is_busy(connect: Connect) -> None:
    first, second = await connect(), await connect()
    await first.subscribe(TOPIC)
    assert (await second.subscribe(TOPIC)).error == CONSUMER_BUSY
    assert (await first.subscribe(TOPIC, consumer_id=2)).error == CONSUMER_BUSY
    assert (await second.subscribe(TOPIC, kind=SHARED)).error == CONSUMER_BUSY


async def test_a_dead_exclusive_consumer_gives_way(start_broker: StartBroker) -> None:
    broker = await start_broker(liveness_check_timeout_s=0.1)
    port = int(broker.service_url.rpartition(":")[2])
    first, second = await RawClient.open(port), await RawClient.open(port)
    await first.handshake()
    await second.handshake()
    await first.subscribe(TOPIC)
    first.answer_pings = False
    answer = await second.subscribe(TOPIC)
    assert not hasattr(answer, "error")
    assert await first.is_closed()
    await first.close()
    await second.close()


async def test_the_type_may_change_when_nobody_is_left(connect: Connect) -> None:
    client = await connect()
    await client.subscribe(TOPIC, consumer_id=1)
    client.say("close_consumer", consumer_id=1, request_id=70)
    await client.expect("success")
    answer = await client.subscribe(TOPIC, consumer_id=2, kind=SHARED)
    assert not hasattr(answer, "error")


async def test_acknowledged_messages_do_not_come_again(connect: Connect) -> None:
    client = await published(connect, 4)
    await client.subscribe(TOPIC, permits=10)
    await client.messages(4)
    client.ack((1, 0), (1, 2))
    client.say("close_consumer", consumer_id=1, request_id=70)
    await client.expect("success")
    await client.subscribe(TOPIC, consumer_id=2)
    client.flow(10, 2)
    assert await received(client, 2) == [b"m1", b"m3"]


async def test_cumulative_acknowledgement_takes_all_before(connect: Connect) -> None:
    client = await published(connect, 4)
    await client.subscribe(TOPIC, permits=10)
    await client.messages(4)
    client.ack((1, 2), cumulative=True)
    client.say("redeliverUnacknowledgedMessages", consumer_id=1)
    assert await received(client, 1) == [b"m3"]
    await client.hears_nothing("message")


async def test_a_cumulative_acknowledgement_of_entry_minus_one_is_borne(connect: Connect) -> None:
    client = await published(connect, 2)
    await client.subscribe(TOPIC, permits=10)
    await client.messages(2)
    client.ack((1, to_unsigned(-1)), cumulative=True, request_id=5)
    await client.expect("ackResponse")
    client.say("redeliverUnacknowledgedMessages", consumer_id=1)
    assert await received(client, 2) == [b"m0", b"m1"]


async def test_what_does_not_exist_yet_cannot_be_acknowledged(connect: Connect) -> None:
    client = await published(connect, 1)
    await client.subscribe(TOPIC, permits=10)
    await client.messages(1)
    client.ack((1, 5), (9, 9))
    client.ack((1, 5), cumulative=True)
    for number in range(6):
        client.send(b"later%d" % number, 10 + number, 100)
    assert await received(client, 6) == [b"later%d" % number for number in range(6)]


async def test_receipts_come_after_the_cursor_is_written(connect: Connect, broker: Broker) -> None:
    client = await published(connect, 2)
    await client.subscribe(TOPIC, permits=10)
    await client.messages(2)
    client.ack((1, 0), request_id=41)
    client.ack((1, 1), request_id=42)
    answers = [await client.expect("ackResponse") for _ in range(2)]
    assert [answer.request_id for answer in answers] == [41, 42]
    assert not answers[0].HasField("error")
    client.ack((1, 1), consumer_id=99, request_id=43)
    assert (await client.expect("ackResponse")).HasField("error")


async def test_parts_of_a_batch_are_acknowledged_bit_by_bit(connect: Connect) -> None:
    client = await connect()
    await client.produce(TOPIC, 100)
    client.send_batch([b"a", b"b", b"c", b"d"], 0, 100)
    await client.expect("send_receipt")
    await client.subscribe(TOPIC, kind=SHARED, permits=10)
    assert list((await client.expect("message")).ack_set) == []
    client.ack((1, 0), ack_set=[0b1110])
    client.ack((1, 0), ack_set=[0b0111])  # Merged: 0b0110 are left.
    client.say("redeliverUnacknowledgedMessages", consumer_id=1)
    message = await client.expect("message")
    assert list(message.ack_set) == [0b0110]
    assert message.redelivery_count == 1
    client.ack((1, 0), ack_set=[0b1001])  # The rest: nothing is left, and the entry is done.
    client.say("redeliverUnacknowledgedMessages", consumer_id=1)
    await client.hears_nothing("message")


async def test_an_ack_set_is_ignored_where_batch_index_acknowledgement_is_off(
    start_broker: StartBroker,
) -> None:
    broker = await start_broker(batch_index_acknowledgement=False)
    client = await RawClient.open(int(broker.service_url.rpartition(":")[2]))
    await client.handshake()
    await client.produce(TOPIC, 100)
    client.send_batch([b"a", b"b"], 0, 100)
    await client.expect("send_receipt")
    await client.subscribe(TOPIC, kind=SHARED, permits=10)
    await client.expect("message")
    client.ack((1, 0), ack_set=[0b10])
    client.say("redeliverUnacknowledgedMessages", consumer_id=1)
    assert list((await client.expect("message")).ack_set) == []
    await client.close()


async def test_shared_consumers_take_turns_and_give_back(connect: Connect) -> None:
    client, other = await published(connect, 4), await connect()
    await client.subscribe(TOPIC, kind=SHARED)
    await other.subscribe(TOPIC, kind=SHARED)
    client.flow(2)
    first = await received(client, 2)
    other.flow(10)
    second = await received(other, 2)
    assert sorted(first + second) == [b"m0", b"m1", b"m2", b"m3"]
    client.abort()
    again = await other.messages(2)
    assert sorted(payload(data) for _, data in again) == sorted(first)
    assert all(not message.HasField("redelivery_count") for message, _ in again)


async def test_redeliveries_are_counted_when_asked_for(connect: Connect) -> None:
    client = await published(connect, 2)
    await client.subscribe(TOPIC, kind=SHARED, permits=20)
    await client.messages(2)
    for count in (1, 2, 3):
        client.say(
            "redeliverUnacknowledgedMessages",
            consumer_id=1,
            message_ids=[MessageIdData(ledgerId=1, entryId=0)],
        )
        message, data = await client.expect_frame("message")
        assert (message.redelivery_count, payload(data)) == (count, b"m0")
    client.ack((1, 0))
    client.say("redeliverUnacknowledgedMessages", consumer_id=1)
    message, data = await client.expect_frame("message")
    assert (message.redelivery_count, payload(data)) == (1, b"m1")


async def test_redelivery_by_id_rewinds_where_order_is_promised(connect: Connect) -> None:
    client = await published(connect, 3)
    await client.subscribe(TOPIC, permits=20)
    await client.messages(3)
    client.say(
        "redeliverUnacknowledgedMessages", consumer_id=1, message_ids=[MessageIdData(ledgerId=1, entryId=2)]
    )
    assert await received(client, 3) == [b"m0", b"m1", b"m2"]


async def test_the_consumer_epoch_is_stamped(connect: Connect) -> None:
    client = await published(connect, 1)
    await client.subscribe(TOPIC, permits=20, consumer_epoch=3)
    assert (await client.expect("message")).consumer_epoch == 3
    client.say("redeliverUnacknowledgedMessages", consumer_id=1, consumer_epoch=4)
    assert (await client.expect("message")).consumer_epoch == 4


async def test_failover_tells_everyone_who_is_active(connect: Connect) -> None:
    client, other = await published(connect, 2), await connect()
    await client.subscribe(TOPIC, kind=FAILOVER, consumer_name="b", permits=10)
    assert (await client.expect("active_consumer_change")).is_active
    assert await received(client, 2) == [b"m0", b"m1"]
    await other.subscribe(TOPIC, kind=FAILOVER, consumer_name="c", permits=10)
    assert not (await other.expect("active_consumer_change")).is_active
    client.ack((1, 0))
    client.say("close_consumer", consumer_id=1, request_id=70)
    assert (await other.expect("active_consumer_change")).is_active
    assert await received(other, 1) == [b"m1"]


async def test_a_better_failover_consumer_takes_over_after_a_pause(start_broker: StartBroker) -> None:
    broker = await start_broker(failover_delay_s=0.2)
    port = int(broker.service_url.rpartition(":")[2])
    client, other = await RawClient.open(port), await RawClient.open(port)
    await client.handshake()
    await other.handshake()
    await client.produce(TOPIC, 100)
    client.send(b"m0", 0, 100)
    await client.subscribe(TOPIC, kind=FAILOVER, consumer_name="b", permits=10)
    await client.messages(1)
    # Not at once: Go's client drops what comes before it has acted upon the receipt.
    assert (await client.expect("active_consumer_change")).is_active
    await other.subscribe(TOPIC, kind=FAILOVER, consumer_name="a", permits=10)
    assert not (await client.expect("active_consumer_change")).is_active
    client.ack((1, 0))  # In time: what was on its way when the other took over does not come twice.
    client.send(b"m1", 1, 100)
    assert await received(other, 1) == [b"m1"]
    await client.close()
    await other.close()


async def test_a_handover_under_way_does_not_reach_the_consumers_that_come_after(
    start_broker: StartBroker,
) -> None:
    broker = await start_broker(failover_delay_s=0.3)
    client, other = [await RawClient.open(int(broker.service_url.rpartition(":")[2])) for _ in range(2)]
    await client.handshake()
    await other.handshake()
    await client.produce(TOPIC, 100)
    client.send(b"m0", 0, 100)
    await client.subscribe(TOPIC, kind=FAILOVER, consumer_name="b", permits=10)
    await client.messages(1)
    await other.subscribe(TOPIC, kind=FAILOVER, consumer_name="a", permits=10)
    topic = broker.topics.find(TopicName.parse(TOPIC))
    assert isinstance(topic, PersistentTopic)
    subscription = topic.subscriptions["sub"]
    assert subscription._pause is not None
    for each in (client, other):
        each.say("close_consumer", consumer_id=1, request_id=70)
        await each.expect("success", where=lambda answer: answer.request_id == 70)
    await client.subscribe(TOPIC, kind=SHARED, permits=10)
    assert await received(client, 1) == [b"m0"]
    await until(lambda: subscription._pause is None)
    await client.hears_nothing("message")
    await client.close()
    await other.close()


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED])
async def test_skipped_messages_that_were_read_already_are_not_sent(
    broker: Broker, connect: Connect, kind: int
) -> None:
    client = await connect()
    await client.produce(TOPIC, 100)
    for number in range(4):
        client.send_batch([b"x"] * 5, number * 5, 100)
        await client.expect("send_receipt")
    await client.subscribe(TOPIC, kind=kind, permits=4)  # Four batches are read for them, and one is sent.
    await client.messages(1)
    topic = broker.topics.find(TopicName.parse(TOPIC))
    assert isinstance(topic, PersistentTopic)
    assert await topic.subscriptions["sub"].skip(10) == 4
    client.flow(50)
    await client.hears_nothing("message")


async def test_skipped_messages_are_not_held_back_any_more(start_broker: StartBroker) -> None:
    """They would take the room of later ones until their time, however far off that is."""
    broker = await start_broker(delayed_entries_max=1)
    client = await RawClient.open(int(broker.service_url.rpartition(":")[2]))
    await client.handshake()
    await client.produce(TOPIC, 100)
    await client.subscribe(TOPIC, kind=SHARED, permits=10)
    client.send(b"far", 0, 100, metadata={"deliver_at_time": 1 << 50})
    await client.expect("send_receipt")
    topic = broker.topics.find(TopicName.parse(TOPIC))
    assert isinstance(topic, PersistentTopic)
    subscription = topic.subscriptions["sub"]
    await until(lambda: subscription.stats()["msgDelayed"] == 1)
    await subscription.skip_all()
    assert subscription.stats()["msgDelayed"] == 0
    client.send(b"near", 1, 100)
    assert await received(client, 1) == [b"near"]
    client.send(b"far", 2, 100, metadata={"deliver_at_time": 1 << 50})
    await until(lambda: subscription.stats()["msgDelayed"] == 1)
    assert await subscription.skip(5) >= 1
    assert subscription.stats()["msgDelayed"] == 0
    await client.close()


async def test_seek_closes_consumers_then_moves_then_succeeds(connect: Connect) -> None:
    client = await published(connect, 4)
    await client.subscribe(TOPIC, permits=10)
    await client.messages(4)
    client.ack((1, 3), cumulative=True)
    client.say("seek", consumer_id=1, request_id=9, message_id=MessageIdData(ledgerId=1, entryId=2))
    assert (await client.expect("close_consumer", "success")).consumer_id == 1
    await client.expect("success")
    await client.subscribe(TOPIC, permits=10)
    assert await received(client, 2) == [b"m2", b"m3"]


@pytest.mark.parametrize(
    ("ledger", "entry", "expected"),
    [(-1, -1, 3), (2**63 - 1, 2**63 - 1, 0), (2**63 - 1, -1, 0)],
    ids=["earliest", "latest", "latest of old clients"],
)
async def test_seek_to_the_ends(connect: Connect, ledger: int, entry: int, expected: int) -> None:
    client = await published(connect, 3)
    await client.subscribe(TOPIC)
    target = MessageIdData(ledgerId=to_unsigned(ledger), entryId=to_unsigned(entry))
    await client.ask("seek", consumer_id=1, message_id=target)
    await client.subscribe(TOPIC, permits=10)
    await client.messages(expected)
    await client.hears_nothing("message")


async def test_seek_by_time_and_into_a_batch(connect: Connect, broker: Broker) -> None:
    client = await published(connect, 2)
    await client.subscribe(TOPIC)
    await client.ask("seek", consumer_id=1, message_publish_time=0)
    await client.subscribe(TOPIC, permits=10)
    assert await received(client, 2) == [b"m0", b"m1"]
    client.send_batch([b"a", b"b", b"c"], 10, 100)
    await client.expect("message")
    target = MessageIdData(ledgerId=1, entryId=2, batch_index=1, ack_set=[0b110])
    await client.ask("seek", consumer_id=1, message_id=target)
    await client.subscribe(TOPIC, permits=10)
    assert list((await client.expect("message")).ack_set) == [0b110]


@pytest.mark.parametrize("logs", [MemoryLogs(pauses=False), MemoryLogs()], ids=["at once", "later"])
async def test_a_reader_that_sought_goes_on_there_whatever_beginning_it_names(connect: Connect) -> None:
    """After a seek by time, clients subscribe with the message they began at: there is no other they could name."""
    client = await published(connect, 2)
    newest = MessageIdData(ledgerId=2**63 - 1, entryId=2**63 - 1)
    reader: dict[str, Any] = {"durable": False, "start_message_id": newest, "earliest": False}
    await client.subscribe(TOPIC, **reader)
    await client.ask("seek", consumer_id=1, message_publish_time=0)
    await client.subscribe(TOPIC, **reader, permits=10)
    assert await received(client, 2) == [b"m0", b"m1"]


async def test_seek_of_nobody_or_nowhere_is_an_error(connect: Connect) -> None:
    client = await connect()
    answer = await client.ask("seek", consumer_id=5, message_publish_time=1)
    assert answer.error == METADATA
    assert "not found" in answer.message
    await client.subscribe(TOPIC)
    assert (await client.ask("seek", consumer_id=1)).error == METADATA


async def test_late_commands_to_a_closed_consumer_are_ignored(connect: Connect) -> None:
    client = await published(connect, 1)
    await client.subscribe(TOPIC, permits=5)
    await client.messages(1)
    await client.ask("seek", consumer_id=1, message_publish_time=0)
    client.flow(5)
    client.ack((1, 0))
    client.say("redeliverUnacknowledgedMessages", consumer_id=1)
    await client.hears_nothing("message")
    await client.subscribe(TOPIC, permits=5)
    assert await received(client, 1) == [b"m0"]


async def test_the_last_message_id(connect: Connect) -> None:
    client = await connect()
    await client.subscribe(TOPIC, earliest=False)
    answer = await client.ask("getLastMessageId", "getLastMessageIdResponse", consumer_id=1)
    assert (answer.last_message_id.ledgerId, answer.last_message_id.entryId) == (2**64 - 1, 2**64 - 1)
    assert answer.last_message_id.batch_index == -1
    await client.produce(TOPIC, 100)
    client.send(b"single", 0, 100)
    await client.expect("send_receipt")
    answer = await client.ask("getLastMessageId", "getLastMessageIdResponse", consumer_id=1)
    assert (answer.last_message_id.entryId, answer.last_message_id.batch_index) == (0, -1)
    client.send_batch([b"a", b"b", b"c"], 1, 100)
    client.send(b"marker", 4, 100, metadata={"marker_type": 20})
    for _ in range(2):
        await client.expect("send_receipt")
    answer = await client.ask("getLastMessageId", "getLastMessageIdResponse", consumer_id=1)
    assert (answer.last_message_id.entryId, answer.last_message_id.batch_index) == (1, 2)
    assert answer.HasField("consumer_mark_delete_position")


async def test_a_reader_of_the_latest_has_nothing_to_read(connect: Connect) -> None:
    client = await published(connect, 2)
    await client.subscribe(TOPIC, "reader-1", durable=False, earliest=False)
    answer = await client.ask("getLastMessageId", "getLastMessageIdResponse", consumer_id=1)
    mark = answer.consumer_mark_delete_position
    assert (mark.ledgerId, mark.entryId) == (answer.last_message_id.ledgerId, answer.last_message_id.entryId)


async def test_a_reader_begins_at_the_entry_it_names(connect: Connect, broker: Broker) -> None:
    client = await published(connect, 4)
    start = MessageIdData(ledgerId=1, entryId=2)
    await client.subscribe(TOPIC, "reader-1", durable=False, start_message_id=start, permits=10)
    assert await received(client, 2) == [b"m2", b"m3"]
    topic = broker.topics.find(TopicName.parse(TOPIC))
    assert topic is not None
    assert "reader-1" in topic.subscriptions
    client.say("close_consumer", consumer_id=1, request_id=70)
    await client.expect("success")
    await client.hears_nothing("message")
    assert "reader-1" not in topic.subscriptions


async def test_durable_and_not_durable_do_not_mix(connect: Connect) -> None:
    client = await connect()
    await client.subscribe(TOPIC, "s")
    assert (await client.subscribe(TOPIC, "s", 2, durable=False)).error == NOT_ALLOWED


@pytest.mark.parametrize("name", ["", "pulsar.dedup", "pulsar.repl.west", "__compaction"])
async def test_reserved_names_are_refused(connect: Connect, name: str) -> None:
    client = await connect()
    assert (await client.subscribe(TOPIC, name)).error == PRODUCER_BUSY


@pytest.mark.parametrize("name", [TOPIC, f"non-{TOPIC}"])
async def test_unsubscribe_needs_to_be_alone(connect: Connect, broker: Broker, name: str) -> None:
    client, other = await connect(), await connect()
    await client.subscribe(name, kind=SHARED)
    await other.subscribe(name, kind=SHARED)
    assert (await client.ask("unsubscribe", consumer_id=1)).error == METADATA
    other.say("close_consumer", consumer_id=1, request_id=70)
    await other.expect("success")
    assert not hasattr(await client.ask("unsubscribe", consumer_id=1), "error")
    topic = broker.topics.find(TopicName.parse(name))
    assert topic is not None
    assert not topic.subscriptions
    assert (await client.ask("unsubscribe", consumer_id=1)).error == METADATA


@pytest.mark.parametrize("name", [TOPIC, f"non-{TOPIC}"])
async def test_unsubscribe_by_force_lets_others_go(connect: Connect, name: str) -> None:
    client, other = await connect(), await connect()
    await client.subscribe(name, kind=SHARED)
    await other.subscribe(name, kind=SHARED)
    assert not hasattr(await client.ask("unsubscribe", consumer_id=1, force=True), "error")
    await other.expect("close_consumer")


async def test_consumer_stats(connect: Connect) -> None:
    client = await published(connect, 3)
    await client.subscribe(TOPIC, kind=SHARED, permits=10, consumer_name="me")
    await client.messages(3)
    answer = await client.ask("consumerStats", "consumerStatsResponse", consumer_id=1)
    assert not answer.HasField("error_code")
    assert (answer.consumerName, answer.type, answer.availablePermits) == ("me", "Shared", 7)
    assert (answer.unackedMessages, answer.msgBacklog) == (3, 3)
    answer = await client.ask("consumerStats", "consumerStatsResponse", consumer_id=9)
    assert answer.error_code == 13


async def test_markers_are_never_delivered_and_leave_no_backlog(connect: Connect, broker: Broker) -> None:
    client = await connect()
    await client.produce(TOPIC, 100)
    await client.subscribe(TOPIC, permits=10)
    client.send(b"marker", 0, 100, metadata={"marker_type": 10})
    client.send(b"real", 1, 100)
    assert await received(client, 1) == [b"real"]
    client.ack((1, 1), request_id=5)
    await client.expect("ackResponse")
    topic = broker.topics.find(TopicName.parse(TOPIC))
    assert isinstance(topic, PersistentTopic)
    assert topic.subscriptions["sub"].cursor.backlog == 0


async def test_all_chunks_of_a_message_go_to_one_consumer(connect: Connect) -> None:
    client, other = await connect(), await connect()
    await client.produce(TOPIC, 100)
    await client.subscribe(TOPIC, kind=SHARED, permits=100)
    await other.subscribe(TOPIC, kind=SHARED, permits=100)
    for chunk in range(4):  # Two messages, interleaved.
        for uuid in ("p-0", "p-1"):
            described = {"uuid": uuid, "num_chunks_from_msg": 4, "chunk_id": chunk, "total_chunk_msg_size": 4}
            client.send(uuid.encode(), 0, 100, metadata=described, is_chunk=True)
    for _ in range(8):
        await client.expect("send_receipt")
    mine = await received(client, 4)
    others = await received(other, 4)
    assert len(set(mine)) == 1
    assert len(set(others)) == 1
    assert mine != others


async def test_unacknowledged_messages_are_limited_per_consumer(start_broker: StartBroker) -> None:
    from magnetar.policies.effective import PolicyDefaults

    broker = await start_broker(PolicyDefaults(max_unacked_messages_per_consumer=4))
    client = await RawClient.open(int(broker.service_url.rpartition(":")[2]))
    await client.handshake()
    await client.produce(TOPIC, 100)
    for number in range(8):
        client.send(b"m%d" % number, number, 100)
    await client.subscribe(TOPIC, kind=SHARED, permits=100)
    await client.messages(4)
    await client.hears_nothing("message")
    client.ack((1, 0))
    await client.hears_nothing("message")
    client.ack((1, 1))  # Half of them: it goes on.
    await client.messages(2)
    await client.close()


async def test_sticky_ranges_must_be_named_and_free(connect: Connect) -> None:
    client = await connect()
    sticky = KeySharedMeta(keySharedMode=STICKY, hashRanges=[IntRange(start=0, end=30000)])
    answer = await client.subscribe(TOPIC, kind=KEY_SHARED, keySharedMeta=KeySharedMeta(keySharedMode=STICKY))
    assert answer.error == ASSIGN
    assert not hasattr(await client.subscribe(TOPIC, kind=KEY_SHARED, keySharedMeta=sticky), "error")
    answer = await client.subscribe(TOPIC, consumer_id=2, kind=KEY_SHARED, keySharedMeta=sticky)
    assert answer.error == ASSIGN
    auto = KeySharedMeta(keySharedMode=AUTO_SPLIT)
    assert (
        await client.subscribe(TOPIC, consumer_id=3, kind=KEY_SHARED, keySharedMeta=auto)
    ).error == CONSUMER_BUSY


async def test_the_end_of_a_topic_is_told_to_those_who_bear_it(connect: Connect, broker: Broker) -> None:
    java = await published(connect, 1, version="Pulsar-Java-v4.0.0")
    native = await connect(version="Pulsar-CPP-v4.2.0")
    await java.subscribe(TOPIC, "java", permits=10)
    await native.subscribe(TOPIC, "cpp", permits=10)
    topic = await broker.topics.get(TopicName.parse(TOPIC), create=False)
    assert isinstance(topic, PersistentTopic)
    await topic.terminate()
    await java.messages(1)
    await java.hears_nothing("reachedEndOfTopic")
    java.ack((1, 0))
    assert (await java.expect("reachedEndOfTopic")).consumer_id == 1
    await native.messages(1)
    native.ack((1, 0))
    await native.hears_nothing("reachedEndOfTopic")
    native.say("ping")
    await native.expect("pong")


async def test_entry_metadata_goes_to_our_client_only(connect: Connect) -> None:
    ours = await published(connect, 1, version="Magnetar-Client 0.1.0")
    official = await connect(version="Pulsar-CPP-v4.2.0")
    await ours.subscribe(TOPIC, "ours", permits=1)
    await official.subscribe(TOPIC, "theirs", permits=1)
    assert (await ours.expect_frame("message"))[1][:2] == b"\x0e\x02"
    assert (await official.expect_frame("message"))[1][:2] == b"\x0e\x01"


async def test_a_consumer_that_does_not_read_is_not_drowned(start_broker: StartBroker) -> None:
    """Entries stay in the log while its connection's buffer is full, whatever its permits."""
    broker = await start_broker(write_buffer_bytes=4096)
    port = int(broker.service_url.rpartition(":")[2])
    producer, consumer = await RawClient.open(port), await RawClient.open(port)
    await producer.handshake()
    await consumer.handshake()
    await producer.produce(TOPIC)
    for number in range(50):
        producer.send(b"x" * 1000, number)
        await producer.expect("send_receipt")
    await consumer.subscribe(TOPIC, permits=1000)
    assert len(await consumer.messages(50)) == 50
    await producer.close()
    await consumer.close()


async def test_subscribe_without_creation_of_the_topic(connect: Connect) -> None:
    client = await connect()
    assert (await client.subscribe(TOPIC, force_topic_creation=False)).error == 11
    answer = await client.subscribe(f"{TOPIC}-partition-0")
    assert answer.error == 11


async def test_a_client_may_not_name_ledgers_that_end_with_its_subscription(connect: Connect) -> None:
    """They might be anybody's: unsubscribing would delete them."""
    client = await published(connect, 1)
    answer = await client.ask(
        "subscribe",
        topic=TOPIC,
        subscription="thief",
        subType=EXCLUSIVE,
        consumer_id=7,
        subscription_properties=[KeyValue(key="magnetar.ledgers", value="1")],
    )
    assert answer.error == NOT_ALLOWED
