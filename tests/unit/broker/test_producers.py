"""Producers, their names and epochs, their messages and receipts."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.broker.broker import Broker
from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.naming import TopicName
from magnetar.policies.effective import PolicyDefaults
from magnetar.protocol.message import build_message, split_message
from magnetar.protocol.pulsar_pb2 import MessageMetadata
from tests.unit.broker.conftest import Connect, StartBroker
from tests.unit.broker.memory_log import MemoryLog, MemoryLogs
from tests.unit.broker.raw_client import RawClient, batch, until

TOPIC = "persistent://public/default/t"
BUSY, TERMINATED, NOT_ALLOWED, CHECKSUM, FENCED = 16, 15, 22, 9, 25
SHARED, EXCLUSIVE, WAIT, FENCING = range(4)


def log_of(logs: MemoryLogs, topic: str = TOPIC) -> MemoryLog:
    return logs.logs[TopicName.parse(topic).managed_ledger_name]


async def test_a_name_is_made_where_none_is_given(connect: Connect) -> None:
    client = await connect()
    first = await client.produce(TOPIC, 1)
    second = await client.produce(TOPIC, 2)
    assert first.producer_name.startswith("standalone-")
    assert first.producer_name != second.producer_name
    assert first.last_sequence_id == -1
    assert first.schema_version == b""
    assert first.producer_ready


async def test_receipts_echo_the_ids_and_come_in_order(connect: Connect) -> None:
    client = await connect()
    await client.produce(TOPIC)
    client.send(sequence_id=5)
    client.send_batch([b"a", b"b", b"c"], 6)
    client.send(sequence_id=9)
    receipts = [await client.expect("send_receipt") for _ in range(3)]
    assert [(each.sequence_id, each.highest_sequence_id) for each in receipts] == [(5, 0), (6, 8), (9, 0)]
    positions = [(each.message_id.ledgerId, each.message_id.entryId) for each in receipts]
    assert positions == sorted(positions)


async def test_the_bytes_stored_are_the_bytes_sent(connect: Connect, logs: MemoryLogs) -> None:
    client = await connect()
    await client.produce(TOPIC)
    message, highest = batch([b"a", b"b"], 0)
    client.send_raw(message, 0, num_messages=2, highest_sequence_id=highest)
    await client.expect("send_receipt")
    log = log_of(logs)
    assert log.entries[log.positions[0]].data == message
    assert log.next_index == 2


async def test_a_message_without_checksum_is_given_one(connect: Connect, logs: MemoryLogs) -> None:
    client = await connect()
    await client.produce(TOPIC)
    message = build_message(MessageMetadata(producer_name="p", sequence_id=0, publish_time=1), b"hello")
    client.send_raw(message[6:], 0)
    await client.expect("send_receipt")
    log = log_of(logs)
    assert log.entries[log.positions[0]].data == message


async def test_nothing_overtakes_a_damaged_message(connect: Connect, logs: MemoryLogs) -> None:
    """It is refused and sent again; with what came behind it in store it would be late, or taken for a repetition."""
    client = await connect()
    await client.produce(TOPIC, producer_name="p")
    client.send(sequence_id=0)
    client.send_raw(damaged(sequence_id=1), 1)
    client.send(sequence_id=2)
    assert (await client.expect("send_receipt")).sequence_id == 0
    refusal = await client.expect("send_error")
    assert (refusal.error, refusal.sequence_id) == (CHECKSUM, 1)
    assert (await client.expect("close_producer")).producer_id == 1
    client.send(sequence_id=3)  # Sent before the client could know.
    await client.produce(TOPIC, producer_id=2, producer_name="p")
    for sequence_id in (1, 2, 3):
        client.send(sequence_id=sequence_id, producer_id=2)
    receipts = [await client.expect("send_receipt", "send_error") for _ in range(3)]
    assert [each.sequence_id for each in receipts] == [1, 2, 3]
    assert len(log_of(logs).positions) == 4


def damaged(sequence_id: int) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=1)
    message = bytearray(build_message(metadata, b"hello"))
    message[-1] ^= 1
    return bytes(message)


async def test_a_batch_that_announces_the_impossible_is_refused(connect: Connect) -> None:
    """The count becomes part of the topic's dense index: two billion of them must not be believed."""
    client = await connect()
    await client.produce(TOPIC)
    metadata = MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=2**31 - 1
    )
    client.send_raw(build_message(metadata, b"tiny"), 0, num_messages=2**31 - 1)
    assert (await client.expect("send_error")).error == NOT_ALLOWED


async def test_send_to_nobody_closes_but_a_late_send_is_ignored(connect: Connect, broker: Broker) -> None:
    client = await connect()
    await client.produce(TOPIC)
    await broker.topics.unload(TopicName.parse(TOPIC))
    await client.expect("close_producer")
    client.send(sequence_id=1)
    await client.hears_nothing("send_receipt", "send_error")
    client.send(sequence_id=1, producer_id=77)
    assert await client.is_closed()


async def test_a_live_holder_keeps_its_name(connect: Connect) -> None:
    first, second = await connect(), await connect()
    await first.produce(TOPIC, producer_name="x")
    assert (await second.produce(TOPIC, producer_name="x")).error == BUSY
    assert (await first.produce(TOPIC, 2, producer_name="x")).error == BUSY


async def test_a_dead_holder_gives_way(start_broker: StartBroker) -> None:
    broker = await start_broker(liveness_check_timeout_s=0.1)
    port = int(broker.service_url.rpartition(":")[2])
    first, second = await RawClient.open(port), await RawClient.open(port)
    await first.handshake()
    await second.handshake()
    await first.produce(TOPIC, producer_name="x")
    first.answer_pings = False
    answer = await second.produce(TOPIC, producer_name="x", user_provided_producer_name=False, epoch=1)
    assert answer.producer_name == "x"
    assert await first.is_closed()
    await first.close()
    await second.close()


async def test_the_same_client_comes_back_with_a_higher_epoch(connect: Connect) -> None:
    client = await connect()
    await client.produce(TOPIC, 1, producer_name="x", epoch=0)
    client.send(sequence_id=1)
    await client.expect("send_receipt")
    answer = await client.produce(TOPIC, 1, producer_name="x", epoch=1)
    assert answer.producer_name == "x"
    client.send(sequence_id=2)
    assert (await client.expect("send_receipt")).sequence_id == 2


async def test_asking_twice_for_one_producer_answers_twice(connect: Connect) -> None:
    client = await connect()
    first = await client.produce(TOPIC, 1)
    again = await client.produce(TOPIC, 1)
    assert again.producer_name == first.producer_name
    assert again.last_sequence_id == -1


async def test_close_waits_for_what_is_under_way(connect: Connect, logs: MemoryLogs) -> None:
    client = await connect()
    await client.produce(TOPIC)
    log = log_of(logs)
    log.hold_appends = True
    client.send(sequence_id=1)
    client.say("close_producer", producer_id=1, request_id=99)
    await client.hears_nothing("success", "send_receipt")
    log.release_appends()
    assert (await client.expect("send_receipt", "success")).sequence_id == 1
    assert (await client.expect("success")).request_id == 99
    client.say("close_producer", producer_id=1234, request_id=100)
    assert (await client.expect("success")).request_id == 100


async def test_a_failed_write_is_a_persistence_error(connect: Connect, logs: MemoryLogs) -> None:
    client = await connect()
    await client.produce(TOPIC)
    log_of(logs).fail_appends = True
    client.send_batch([b"a", b"b"], 3)
    answer = await client.expect("send_error")
    assert answer.error == 2
    assert answer.sequence_id == 4


async def test_failures_in_a_row_are_logged_once(
    connect: Connect, logs: MemoryLogs, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "magnetar.broker")
    client = await connect()
    await client.produce(TOPIC)
    log_of(logs).fail_appends = True
    for sequence_id in range(3):
        client.send(sequence_id=sequence_id)
        await client.expect("send_error")
    log_of(logs).fail_appends = False
    client.send(sequence_id=3)
    await client.expect("send_receipt")
    assert caplog.text.count("message.not_stored") == 1
    assert caplog.text.count("messages.stored_again") == 1


async def test_a_message_whose_first_chunk_failed_is_not_taken_for_stored(
    start_broker: StartBroker, logs: MemoryLogs
) -> None:
    """Its last chunk, which is stored, tells nothing: all of it is sent again, and must be taken."""
    broker = await start_broker(PolicyDefaults(deduplication_enabled=True))
    client = await RawClient.open(int(broker.service_url.rpartition(":")[2]))
    await client.handshake()
    await client.produce(TOPIC, producer_name="p")
    log = log_of(logs)

    def send(chunk: int) -> None:
        described = {"uuid": "u", "num_chunks_from_msg": 2, "chunk_id": chunk, "total_chunk_msg_size": 2}
        client.send(b"%d" % chunk, 1, metadata=described, is_chunk=True)

    log.fail_appends = True
    send(0)
    assert (await client.expect("send_error")).error == 2
    await client.expect("close_producer")
    log.fail_appends = False
    assert (await client.produce(TOPIC, producer_name="p", epoch=1)).last_sequence_id == -1
    send(0)
    send(1)
    for _ in range(2):
        assert (await client.expect("send_receipt")).message_id.ledgerId == 1
    await client.close()


@pytest.mark.parametrize("stored", [True, False])
async def test_a_write_whose_outcome_is_unknown_is_looked_up_in_the_log(
    start_broker: StartBroker, logs: MemoryLogs, stored: bool
) -> None:
    """With deduplication: the message is sent again, and lies there once, whatever became of the first write."""
    broker = await start_broker(PolicyDefaults(deduplication_enabled=True))
    client = await RawClient.open(int(broker.service_url.rpartition(":")[2]))
    await client.handshake()
    await client.produce(TOPIC, producer_name="p")
    log = log_of(logs)
    log.fail_appends, log.store_what_fails = True, stored
    client.send(sequence_id=1)
    client.send(sequence_id=2)
    assert (await client.expect("send_error")).error == 2
    await client.expect("close_producer")
    log.fail_appends = False
    answer = await client.produce(TOPIC, producer_name="p", epoch=1)
    assert answer.last_sequence_id == (2 if stored else -1)
    for sequence_id in (1, 2):
        client.send(sequence_id=sequence_id)
        await client.expect("send_receipt")
    assert len(log.positions) == 2
    await client.close()


async def test_bytes_that_are_no_message_leave_nothing_behind(connect: Connect, broker: Broker) -> None:
    client = await connect()
    await client.produce(TOPIC)
    client.send_raw(b"\x00\x00\xff\xff\x01", 0)
    assert await client.is_closed()
    assert broker.context.budget.used_bytes == 0


async def test_reading_pauses_while_too_much_is_under_way(
    start_broker: StartBroker, logs: MemoryLogs
) -> None:
    broker = await start_broker(max_pending_publishes_per_connection=10)
    client = await RawClient.open(int(broker.service_url.rpartition(":")[2]))
    await client.handshake()
    await client.produce(TOPIC)
    log = log_of(logs)
    log.hold_appends = True
    for sequence_id in range(20):
        client.send(sequence_id=sequence_id)
        await asyncio.sleep(0)
    topic = broker.topics.find(TopicName.parse(TOPIC))
    assert isinstance(topic, PersistentTopic)
    producer = next(iter(topic.producers.values()))
    await until(lambda: len(producer.pending) > 10)
    client.say("ping")
    connection = next(iter(broker.connections))
    assert not connection.reading
    log.release_appends()
    for _ in range(20):
        await client.expect("send_receipt")
    await client.expect("pong")
    assert connection.reading
    assert broker.context.budget.used_bytes == 0
    await client.close()


async def test_the_budget_of_all_connections_pauses_too(start_broker: StartBroker, logs: MemoryLogs) -> None:
    broker = await start_broker(max_pending_publish_bytes=1024 * 1024)
    client = await RawClient.open(int(broker.service_url.rpartition(":")[2]))
    await client.handshake()
    await client.produce(TOPIC)
    log_of(logs).hold_appends = True
    for sequence_id in range(2):
        client.send(b"x" * 700_000, sequence_id)
    connection = next(iter(broker.connections))
    await until(lambda: not connection.reading)
    log_of(logs).release_appends()
    for _ in range(2):
        await client.expect("send_receipt")
    assert connection.reading
    await client.close()


async def test_nobody_joins_an_exclusive_producer(connect: Connect) -> None:
    client = await connect()
    owner = await client.produce(TOPIC, 1, producer_access_mode=EXCLUSIVE)
    assert owner.topic_epoch == 0
    assert (await client.produce(TOPIC, 2, producer_access_mode=EXCLUSIVE)).error == FENCED
    assert (await client.produce(TOPIC, 3, producer_access_mode=SHARED)).error == BUSY


async def test_waiting_producers_take_turns(connect: Connect) -> None:
    first, second = await connect(), await connect()
    await first.produce(TOPIC, 1, producer_access_mode=EXCLUSIVE)
    waiting = await second.produce(TOPIC, 1, producer_access_mode=WAIT)
    assert not waiting.producer_ready
    first.abort()
    promoted = await second.expect("producer_success")
    assert promoted.request_id == waiting.request_id
    assert promoted.producer_ready
    assert promoted.topic_epoch == 1


async def test_fencing_evicts_and_the_evicted_cannot_return(connect: Connect) -> None:
    first, second = await connect(), await connect()
    owner = await first.produce(TOPIC, 1, producer_name="old", producer_access_mode=EXCLUSIVE)
    taken = await second.produce(TOPIC, 1, producer_name="new", producer_access_mode=FENCING)
    assert taken.topic_epoch == 1
    await first.expect("close_producer")
    answer = await first.produce(
        TOPIC, 1, producer_name="old", producer_access_mode=EXCLUSIVE, topic_epoch=owner.topic_epoch, epoch=1
    )
    assert answer.error == FENCED


async def test_the_topic_epoch_survives_an_unload(connect: Connect, broker: Broker) -> None:
    client = await connect()
    assert (await client.produce(TOPIC, 1, producer_access_mode=EXCLUSIVE)).topic_epoch == 0
    await broker.topics.unload(TopicName.parse(TOPIC))
    assert (await client.produce(TOPIC, 2, producer_access_mode=EXCLUSIVE)).topic_epoch == 1


async def test_a_shared_producer_may_name_any_topic_epoch(connect: Connect) -> None:
    """Go sends 0 when it comes back, whatever the epoch is."""
    client = await connect()
    await client.produce(TOPIC, 1, producer_access_mode=EXCLUSIVE)
    client.say("close_producer", producer_id=1, request_id=50)
    await client.expect("success")
    assert (await client.produce(TOPIC, 2, topic_epoch=0)).producer_ready


async def test_terminated_topics_take_nothing(connect: Connect, broker: Broker) -> None:
    client = await connect()
    await client.produce(TOPIC)
    client.send()
    await client.expect("send_receipt")
    topic = await broker.topics.get(TopicName.parse(TOPIC), create=False)
    assert isinstance(topic, PersistentTopic)
    last = await topic.terminate()
    assert (last.ledger_id, last.entry_id) == (1, 0)
    await client.expect("close_producer")
    assert (await client.produce(TOPIC, 2)).error == TERMINATED


async def test_an_empty_initial_subscription_is_none(connect: Connect, broker: Broker) -> None:
    client = await connect()
    await client.produce(TOPIC, 1, initial_subscription_name="")
    topic = await broker.topics.get(TopicName.parse(TOPIC), create=False)
    assert not topic.subscriptions
    await client.produce(TOPIC, 2, initial_subscription_name="first")
    assert list(topic.subscriptions) == ["first"]


async def test_the_number_of_producers_is_limited(start_broker: StartBroker) -> None:
    broker = await start_broker(PolicyDefaults(max_producers_per_topic=1))
    client = await RawClient.open(int(broker.service_url.rpartition(":")[2]))
    await client.handshake()
    await client.produce(TOPIC, 1)
    assert (await client.produce(TOPIC, 2)).error == BUSY
    await client.close()


async def test_one_load_serves_all_who_ask(connect: Connect, logs: MemoryLogs) -> None:
    clients = [await connect() for _ in range(5)]
    await asyncio.gather(*(client.produce(TOPIC) for client in clients))
    assert logs.opens == 1


async def test_non_persistent_receipts_name_no_place(connect: Connect) -> None:
    client = await connect()
    topic = "non-persistent://public/default/np"
    await client.produce(topic)
    client.send(sequence_id=3)
    receipt = await client.expect("send_receipt")
    assert (receipt.message_id.ledgerId, receipt.message_id.entryId) == (0, 0)
    await client.subscribe(topic, permits=1)
    client.send(b"one", 4)
    client.send(b"dropped", 5)
    _, data = await client.expect_frame("message")
    assert bytes(split_message(data).payload) == b"one"
    await client.hears_nothing("message")
    client.flow(1)
    client.send(b"three", 6)
    _, data = await client.expect_frame("message")
    assert bytes(split_message(data).payload) == b"three"


async def test_a_producer_that_is_given_up_for_another_leaves_its_topic(
    connect: Connect, broker: Broker
) -> None:
    """The same number for another name: the first would stay for ever, for no connection knows it any more."""
    client = await connect()
    await client.produce("t", 1, producer_name="first", producer_access_mode=1)
    await client.produce("t", 1, producer_name="second", epoch=1)
    topic = broker.topics.find(TopicName.parse("t"))
    assert topic is not None
    assert list(topic.producers) == ["second"]
