"""Consumers and readers: permits, batches, acknowledgements, redelivery, seeking, ends and dead letters."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.client import Client, DeadLetterPolicy, MessageId, OutgoingMessage
from magnetar.client.consumer import Consumer
from magnetar.client.errors import AlreadyClosed, BrokerRefused, InvalidUse
from magnetar.protocol import commands
from magnetar.protocol.entry import wrap_entry
from magnetar.protocol.frames import Frame
from magnetar.protocol.ids import LATEST
from magnetar.protocol.pulsar_pb2 import BaseCommand, CommandSubscribe, ServerError
from tests.unit.client.fake_broker import LEDGER, FakeBroker, Session

TOPIC = "persistent://public/default/t"


async def fill(client: Client, *sizes: int, topic: str = "t") -> None:
    """Store batches of these sizes; the payloads count on."""
    producer = await client.create_producer(topic)
    number = 0
    for size in sizes:
        await producer.send_batch_nowait([b"%d" % n for n in range(number, number + size)])
        number += size
    await producer.close()


async def take(consumer: Consumer, batches: int) -> list[list[bytes]]:
    taken = []
    for _ in range(batches):
        batch = await consumer.receive_batch(2)
        assert batch is not None
        taken.append(batch.payloads)
    return taken


def subscriber(broker: FakeBroker) -> tuple[Session, int]:
    """The session and id of the one consumer."""
    ((session, consumer_id),) = [
        (session, consumer_id) for session in broker.sessions for consumer_id in session.subscribers
    ]
    return session, consumer_id


async def test_whole_batches_come_in_order(broker: FakeBroker, client: Client) -> None:
    await fill(client, 2, 1, 3)
    consumer = await client.subscribe("t", "s")
    assert await take(consumer, 3) == [[b"0", b"1"], [b"2"], [b"3", b"4", b"5"]]
    assert await consumer.receive_batch(timeout_s=0) is None
    assert await consumer.receive_batch(timeout_s=0.01) is None


async def test_single_messages_and_batches_may_be_mixed(broker: FakeBroker, client: Client) -> None:
    await fill(client, 4, 2)
    consumer = await client.subscribe("t", "s")
    first = await consumer.receive(2)
    second = await consumer.receive(2)
    assert first is not None
    assert second is not None
    assert [first.data, second.data] == [b"0", b"1"]
    assert [first.message_id.batch_index, second.message_id.batch_index] == [0, 1]
    assert await take(consumer, 2) == [[b"2", b"3"], [b"4", b"5"]]


async def test_several_tasks_may_receive_at_once(broker: FakeBroker, client: Client) -> None:
    consumer = await client.subscribe("t", "s")
    waiting = [asyncio.ensure_future(consumer.receive(2)) for _ in range(7)]
    await asyncio.sleep(0)
    await fill(client, 3, 4)
    messages = await asyncio.gather(*waiting)
    assert sorted(m.data for m in messages if m is not None) == [b"%d" % number for number in range(7)]


async def test_what_a_message_tells(broker: FakeBroker, client: Client) -> None:
    producer = await client.create_producer("t", producer_name="me")
    await producer.send_batch_nowait(
        [b"a", OutgoingMessage(b"b", key="k", ordering_key=b"o", properties={"x": "y"}, event_time=5)]
    )
    entries = broker.topic(TOPIC).entries
    entries[0] = wrap_entry(1234, 41) + entries[0]
    broker.send_entry = sending_wrapped(broker)  # type: ignore[method-assign]
    consumer = await client.subscribe("t", "s")
    batch = await consumer.receive_batch(2)
    assert batch is not None
    assert (batch.index, batch.broker_timestamp, batch.message_id) == (41, 1234, MessageId(LEDGER, 0))
    a, b = batch.messages
    assert (a.index, b.index) == (40, 41)
    assert (a.key, a.properties, a.event_time, a.ordering_key) == (None, {}, None, None)
    assert (b.key, b.properties, b.event_time, b.ordering_key) == ("k", {"x": "y"}, 5, b"o")
    assert (b.sequence_id, b.producer_name, b.topic) == (1, "me", TOPIC)
    assert b.message_id == MessageId(LEDGER, 0, -1, 1)
    assert b.message_id.batch_size == 2
    assert b.publish_time > 1_600_000_000_000
    metadata, raw = batch.raw
    assert metadata.num_messages_in_batch == 2
    assert len(raw) == metadata.uncompressed_size
    assert [message.data for message in batch.messages[1:]] == [b"b"]
    assert batch.messages[-1].data == b"b"


def sending_wrapped(broker: FakeBroker):  # type: ignore[no-untyped-def]
    def send(session: Session, consumer_id: int, entry_id: int, **_: object) -> None:
        entry = broker.topic(TOPIC).entries[entry_id]
        session.write(commands.message(consumer_id, LEDGER, entry_id, len(entry)) + entry)
        session.subscribers[consumer_id].permits -= 1

    return send


async def test_permits_are_given_back_by_halves(broker: FakeBroker, client: Client) -> None:
    await fill(client, *[2] * 12)
    consumer = await client.subscribe("t", "s", receiver_queue_size=10)
    await take(consumer, 2)
    assert broker.count(BaseCommand.FLOW) == 1
    await take(consumer, 1)
    await broker.until(lambda: broker.count(BaseCommand.FLOW) == 2)
    assert broker.last(BaseCommand.FLOW).flow.messagePermits == 6
    assert len(await take(consumer, 9)) == 9


async def test_acknowledgements_travel_together(broker: FakeBroker, client: Client) -> None:
    await fill(client, 2, 2, 1, 3)
    consumer = await client.subscribe("t", "s", type="shared", ack_group_ms=5)
    batches = [await consumer.receive_batch(2) for _ in range(4)]
    first, second, third, fourth = [batch for batch in batches if batch is not None]
    consumer.acknowledge(first)
    for message in second.messages:
        consumer.acknowledge(message)
    consumer.acknowledge(third.message_id)
    consumer.acknowledge(fourth.messages[1])
    await broker.until(lambda: broker.count(BaseCommand.ACK) == 1)
    assert broker.acknowledged == [(0, [], False), (1, [], False), (2, [], False), (3, [0b101], False)]
    consumer.acknowledge(fourth.messages[0].message_id)
    await consumer.flush_acknowledgements()
    assert broker.acknowledged[-1] == (3, [0b100], False)
    assert broker.last(BaseCommand.ACK).ack.HasField("request_id")
    consumer.acknowledge(fourth.messages[2])
    await consumer.flush_acknowledgements()
    assert broker.acknowledged[-1] == (3, [], False)
    before = broker.count(BaseCommand.ACK)
    await consumer.flush_acknowledgements()
    assert broker.count(BaseCommand.ACK) == before
    with pytest.raises(InvalidUse, match="shared"):
        consumer.acknowledge_cumulative(fourth)
    with pytest.raises(InvalidUse, match="size of its batch"):
        consumer.acknowledge(MessageId(LEDGER, 3, -1, 1))


async def test_cumulative_acknowledgements(broker: FakeBroker, client: Client) -> None:
    await fill(client, 2, 3, 2)
    consumer = await client.subscribe("t", "s")
    batches = [await consumer.receive_batch(2) for _ in range(3)]
    _, second, third = [batch for batch in batches if batch is not None]
    consumer.acknowledge_cumulative(second.messages[1])
    await consumer.flush_acknowledgements()
    assert broker.acknowledged == [(1, [0b100], True)]
    consumer.acknowledge_cumulative(second.messages[0])  # Behind: says nothing new.
    consumer.acknowledge_cumulative(second.messages[2])
    await consumer.flush_acknowledgements()
    consumer.acknowledge_cumulative(third)
    await consumer.flush_acknowledgements()
    assert broker.acknowledged[1:] == [(1, [], True), (2, [], True)]


async def test_part_of_an_entry_may_be_acknowledged_already(broker: FakeBroker, client: Client) -> None:
    await fill(client, 4)
    consumer = await client.subscribe("t", "s", type="shared")
    await take(consumer, 1)
    session, consumer_id = subscriber(broker)
    broker.send_entry(session, consumer_id, 0, redelivery_count=2, ack_set=(0b1010,))
    batch = await consumer.receive_batch(2)
    assert batch is not None
    assert (len(batch), batch.payloads, batch.redelivery_count) == (2, [b"1", b"3"], 2)
    consumer.acknowledge(batch.messages[0])
    await consumer.flush_acknowledgements()
    assert broker.acknowledged == [(0, [0b1000], False)]
    consumer.acknowledge(batch.messages[1])
    await consumer.flush_acknowledgements()
    assert broker.acknowledged[-1] == (0, [], False)


async def test_negative_acknowledgements_come_back_after_the_delay(
    broker: FakeBroker, client: Client
) -> None:
    await fill(client, 2, 1, 1)
    consumer = await client.subscribe("t", "s", type="shared", negative_ack_delay_s=0.03)
    batches = [await consumer.receive_batch(2) for _ in range(3)]
    first, second, third = [batch for batch in batches if batch is not None]
    consumer.acknowledge(first.messages[0])
    consumer.negative_acknowledge(first.messages[1])
    consumer.negative_acknowledge(second)
    consumer.negative_acknowledge(third)
    consumer.acknowledge(third)  # A change of mind.
    await broker.until(lambda: broker.count(BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES) == 1)
    asked = broker.last(BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES).redeliverUnacknowledgedMessages
    assert [place.entryId for place in asked.message_ids] == [0, 1]
    assert (0, [0b10], False) in broker.acknowledged  # Told first, so that only the rest comes again.


async def test_redelivery_of_everything_drops_what_is_of_an_earlier_epoch(
    broker: FakeBroker, client: Client
) -> None:
    await fill(client, 1, 1, 1, 1)
    consumer = await client.subscribe("t", "s", receiver_queue_size=4)
    await take(consumer, 1)
    consumer.redeliver_unacknowledged()
    await broker.until(lambda: broker.count(BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES) == 1)
    asked = broker.last(BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES).redeliverUnacknowledgedMessages
    assert (len(asked.message_ids), asked.consumer_epoch) == (0, 1)
    session, consumer_id = subscriber(broker)
    broker.send_entry(session, consumer_id, 3, epoch=0)
    broker.send_entry(session, consumer_id, 0, epoch=1)
    assert await take(consumer, 1) == [[b"0"]]
    await broker.until(lambda: session.subscribers[consumer_id].permits >= 2)  # All permits came back.


async def test_after_a_loss_everything_unacknowledged_comes_again(broker: FakeBroker, client: Client) -> None:
    await fill(client, 1, 3, 1)
    consumer = await client.subscribe("t", "s")
    await take(consumer, 1)
    assert (await consumer.receive(2)) is not None
    broker.cut()
    await broker.until(lambda: broker.count(BaseCommand.SUBSCRIBE) == 2)
    assert await take(consumer, 3) == [[b"0"], [b"1", b"2", b"3"], [b"4"]]
    assert broker.last(BaseCommand.SUBSCRIBE).subscribe.consumer_name == consumer.name


async def test_acknowledgements_survive_a_loss_and_spare_a_second_delivery(
    broker: FakeBroker, client: Client
) -> None:
    await fill(client, 1, 1)
    consumer = await client.subscribe("t", "s", ack_group_ms=10_000)
    batch = await consumer.receive_batch(2)
    assert batch is not None
    consumer.acknowledge(batch)
    broker.intercept = lambda session, frame: frame.type == BaseCommand.SUBSCRIBE
    broker.cut()
    await broker.until(lambda: broker.count(BaseCommand.SUBSCRIBE) == 2)
    broker.intercept = lambda session, frame: False
    broker.cut()
    assert await take(consumer, 2) == [[b"0"], [b"1"]]  # This broker forgets acknowledgements.
    assert broker.acknowledged == [(0, [], False)]
    consumer.acknowledge(batch)
    session, consumer_id = subscriber(broker)
    broker.send_entry(session, consumer_id, 0)
    assert await consumer.receive_batch(0.02) is None  # Acknowledged, and about to be told.


async def test_a_reader_misses_and_repeats_nothing_across_losses(broker: FakeBroker, client: Client) -> None:
    await fill(client, 2, 2, 2)
    reader = await client.create_reader("t", MessageId.EARLIEST)
    first = await reader.read(2)
    assert first is not None
    assert first.data == b"0"
    broker.cut()
    await broker.until(lambda: broker.count(BaseCommand.SUBSCRIBE) == 2)
    rest = [await reader.read(2) for _ in range(5)]
    assert [message.data for message in rest if message is not None] == [b"%d" % n for n in range(1, 6)]
    assert broker.last(BaseCommand.SUBSCRIBE).subscribe.start_message_id.entryId == 0
    assert not await reader.has_message_available()


async def test_a_latest_reader_keeps_its_place_across_a_loss(broker: FakeBroker, client: Client) -> None:
    await fill(client, 2)
    reader = await client.create_reader("t", LATEST)
    assert not await reader.has_message_available()
    broker.intercept = lambda session, frame: frame.type == BaseCommand.SUBSCRIBE
    broker.cut()
    await broker.until(lambda: broker.count(BaseCommand.SUBSCRIBE) == 2)
    await fill(client, 1)
    broker.intercept = lambda session, frame: False
    broker.cut()
    message = await reader.read(2)
    assert message is not None
    assert message.message_id.entry_id == 1


@pytest.mark.parametrize(
    ("start", "inclusive", "expected"),
    [
        (MessageId.EARLIEST, False, b"0"),
        (MessageId(LEDGER, 0), False, b"3"),
        (MessageId(LEDGER, 0), True, b"0"),
        (MessageId(LEDGER, 0, -1, 1), False, b"2"),
        (MessageId(LEDGER, 0, -1, 1), True, b"1"),
        (MessageId(LEDGER, 0, -1, 2), False, b"3"),
    ],
)
async def test_where_a_reader_begins(
    broker: FakeBroker, client: Client, start: MessageId, inclusive: bool, expected: bytes
) -> None:
    await fill(client, 3, 2)
    reader = await client.create_reader("t", start, start_inclusive=inclusive)
    assert await reader.has_message_available()
    message = await reader.read(2)
    assert message is not None
    assert message.data == expected


def seek_like_a_broker(broker: FakeBroker, to_entry: int):  # type: ignore[no-untyped-def]
    """CLOSE_CONSUMER, then SUCCESS, then wait for the client to subscribe anew."""

    def intercept(session: Session, frame: Frame) -> bool:
        if frame.type == BaseCommand.SEEK:
            asked = frame.command.seek
            consumer = session.subscribers.pop(asked.consumer_id)
            broker.topic(consumer.topic)
            session.write(commands.broker_closes_consumer(asked.consumer_id))
            session.write(commands.success(asked.request_id))
            return True
        if frame.type == BaseCommand.SUBSCRIBE:
            broker.answer(session, frame)
            session.subscribers[frame.command.subscribe.consumer_id].next_entry = to_entry
            return True
        return False

    return intercept


async def test_seeking(broker: FakeBroker, client: Client) -> None:
    await fill(client, 3, 3, 3)
    consumer = await client.subscribe("t", "s")
    await take(consumer, 1)
    broker.intercept = seek_like_a_broker(broker, 1)
    await consumer.seek(MessageId(LEDGER, 1, -1, 0, 3))
    assert broker.last(BaseCommand.SEEK).seek.message_id.entryId == 1
    assert await take(consumer, 2) == [[b"4", b"5"], [b"6", b"7", b"8"]]
    await consumer.seek(MessageId(LEDGER, 1, -1, 1, 3), inclusive=True)
    assert await take(consumer, 1) == [[b"4", b"5"]]
    session, consumer_id = subscriber(broker)
    broker.send_entry(session, consumer_id, 1)
    broker.send_entry(session, consumer_id, 0)
    await take(consumer, 1)  # Entry 2 was on its way.
    assert await take(consumer, 2) == [[b"3", b"4", b"5"], [b"0", b"1", b"2"]]  # Redeliveries are wanted.
    broker.intercept = seek_like_a_broker(broker, 0)
    await consumer.seek(1234)
    assert broker.last(BaseCommand.SEEK).seek.message_publish_time == 1234
    assert await take(consumer, 1) == [[b"0", b"1", b"2"]]


async def test_a_seek_is_tried_again_while_the_consumer_is_away(broker: FakeBroker, client: Client) -> None:
    await fill(client, 1)
    consumer = await client.subscribe("t", "s")
    answers = iter([True])

    def unknown_at_first(session: Session, frame: Frame) -> bool:
        if frame.type == BaseCommand.SEEK and next(answers, False):
            session.write(
                commands.error(frame.command.seek.request_id, ServerError.MetadataError, "not found")
            )
            return True
        return bool(seek_like_a_broker(broker, 0)(session, frame))

    broker.intercept = unknown_at_first
    await consumer.seek(MessageId.EARLIEST)
    assert broker.count(BaseCommand.SEEK) == 2
    assert await take(consumer, 1) == [[b"0"]]


async def test_the_end_of_a_topic_wakes_whoever_waits(broker: FakeBroker, client: Client) -> None:
    await fill(client, 1)
    consumer = await client.subscribe("t", "s")
    await take(consumer, 1)
    waiting = asyncio.ensure_future(consumer.receive_batch())
    limited = asyncio.ensure_future(consumer.receive_batch(timeout_s=10))
    await asyncio.sleep(0)
    session, consumer_id = subscriber(broker)
    session.write(commands.reached_end_of_topic(consumer_id))
    assert await waiting is None
    assert await limited is None
    assert consumer.ended.is_set()
    assert await consumer.receive_batch() is None
    assert await consumer.receive_batch(timeout_s=0.01) is None


async def test_what_is_delivered_too_often_goes_to_the_dead_letters(
    broker: FakeBroker, client: Client
) -> None:
    producer = await client.create_producer("t")
    await producer.send(b"poison", key="k", properties={"a": "b"})
    consumer = await client.subscribe(
        "t", "s", type="shared", dead_letter=DeadLetterPolicy(max_redeliver_count=2), ack_group_ms=0
    )
    session, consumer_id = await first_delivery(broker, consumer)
    broker.send_entry(session, consumer_id, 0, redelivery_count=2)
    assert await take(consumer, 1) == [[b"poison"]]
    broker.send_entry(session, consumer_id, 0, redelivery_count=3)
    assert await consumer.receive_batch(0.05) is None
    await broker.until(lambda: broker.acknowledged == [(0, [], False)])
    letters = await client.subscribe("t-s-DLQ", "inspect")
    letter = await letters.receive(2)
    assert letter is not None
    assert (letter.data, letter.key) == (b"poison", "k")
    assert letter.properties == {
        "a": "b",
        "REAL_TOPIC": TOPIC,
        "REAL_SUBSCRIPTION": "s",
        "ORIGIN_MESSAGE_ID": f"{LEDGER}:0:-1:-1",
    }
    with pytest.raises(InvalidUse, match="shared"):
        await client.subscribe("t", "x", dead_letter=DeadLetterPolicy(1))


async def first_delivery(broker: FakeBroker, consumer: Consumer) -> tuple[Session, int]:
    place = subscriber(broker)
    assert await consumer.receive_batch(2) is not None
    return place


async def test_chunks_are_joined_and_acknowledged_together(broker: FakeBroker, client: Client) -> None:
    broker.max_message_bytes = 5000
    producer = await client.create_producer("t", chunking=True, compression="zlib", batching=False)
    payload = bytes(n * 31 % 251 for n in range(9000)) + b"".join(b"%d" % n for n in range(4000))
    await producer.send(payload)
    await producer.send(b"small")
    chunks = len(broker.topic(TOPIC).entries) - 1
    assert chunks > 1
    consumer = await client.subscribe("t", "s", type="shared")
    message = await consumer.receive(2)
    assert message is not None
    assert message.data == payload
    assert message.batch.chunk_ids == tuple(MessageId(LEDGER, n) for n in range(chunks))
    consumer.acknowledge(message)
    await consumer.flush_acknowledgements()
    assert [entry for entry, _, _ in broker.acknowledged] == list(range(chunks))
    assert await take(consumer, 1) == [[b"small"]]


async def test_what_cannot_be_read_is_set_aside(broker: FakeBroker, client: Client) -> None:
    await fill(client, 1, 1, 1)
    entries = broker.topic(TOPIC).entries
    entries[1] = entries[1][:-1] + b"!"
    consumer = await client.subscribe("t", "s")
    broker.send_entry = sending_wrapped(broker)  # type: ignore[method-assign]
    assert await take(consumer, 2) == [[b"0"], [b"2"]]
    await broker.until(lambda: broker.count(BaseCommand.ACK) == 1)
    ack = broker.last(BaseCommand.ACK).ack
    assert ack.validation_error == ack.ChecksumMismatch
    assert ack.message_id[0].entryId == 1


async def test_several_topics_and_partitions_in_one_consumer(broker: FakeBroker, client: Client) -> None:
    broker.partitions["persistent://public/default/p"] = 2
    await fill(client, 1, topic="p-partition-0")
    await fill(client, 2, topic="p-partition-1")
    await fill(client, 3, topic="t")
    consumer = await client.subscribe(["p", "t"], "s", ack_group_ms=0)
    batches = [await consumer.receive_batch(2) for _ in range(3)]
    found = {batch.topic.rpartition("/")[2]: len(batch) for batch in batches if batch is not None}
    assert found == {"p-partition-0": 1, "p-partition-1": 2, "t": 3}
    for batch in batches:
        assert batch is not None
        assert batch.message_id.partition == {"0": 0, "1": 1}.get(batch.topic[-1], -1)
        consumer.acknowledge(batch.message_id)
    await broker.until(lambda: len(broker.acknowledged) == 3)
    with pytest.raises(InvalidUse, match="get_last_message_ids"):
        await consumer.get_last_message_id()
    assert len(await consumer.get_last_message_ids()) == 3
    sessions = [session for session in broker.sessions for _ in session.subscribers]
    for session in sessions:
        for consumer_id in session.subscribers:
            session.write(commands.reached_end_of_topic(consumer_id))
    assert await consumer.receive_batch() is None


async def test_partitions_that_come_later_are_found(broker: FakeBroker) -> None:
    broker.partitions["persistent://public/default/p"] = 1
    async with Client(broker.url, partition_update_s=0.01) as client:
        consumer = await client.subscribe("p", "s")
        producer = await client.create_producer("p", batching=False)
        broker.partitions["persistent://public/default/p"] = 3
        await broker.until(lambda: broker.count(BaseCommand.SUBSCRIBE) == 3)
        await broker.until(lambda: broker.count(BaseCommand.PRODUCER) == 3)
        assert broker.last(BaseCommand.SUBSCRIBE).subscribe.initialPosition == CommandSubscribe.Earliest
        ids = [await producer.send(b"") for _ in range(6)]
        while len({message_id.partition for message_id in ids}) < 3:
            ids.append(await producer.send(b""))
        received = [await consumer.receive(2) for _ in ids]
        assert {m.message_id.partition for m in received if m is not None} == {0, 1, 2}


@pytest.mark.parametrize(
    ("kind", "number", "epoch"),
    [("exclusive", 0, True), ("shared", 1, False), ("failover", 2, True), ("key_shared", 3, False)],
)
async def test_what_subscribing_says(
    broker: FakeBroker, client: Client, kind: str, number: int, epoch: bool
) -> None:
    await client.subscribe(
        "t",
        "s",
        type=kind,  # type: ignore[arg-type]
        initial="earliest",
        consumer_name="me",
        properties={"a": "b"},
        subscription_properties={"c": "d"},
        priority=3,
    )
    asked = broker.last(BaseCommand.SUBSCRIBE).subscribe
    assert (asked.subType, asked.consumer_name, asked.priority_level) == (number, "me", 3)
    assert asked.initialPosition == CommandSubscribe.Earliest
    assert asked.HasField("consumer_epoch") == epoch
    assert asked.HasField("keySharedMeta") == (kind == "key_shared")
    assert asked.subscription_properties[0].key == "c"
    await broker.until(lambda: broker.count(BaseCommand.FLOW) == 1)
    assert broker.last(BaseCommand.FLOW).flow.messagePermits == 1000


async def test_a_refusal_is_told_and_leaves_nothing_behind(broker: FakeBroker, client: Client) -> None:
    def busy(session: Session, frame: Frame) -> bool:
        if frame.type == BaseCommand.SUBSCRIBE:
            session.write(
                commands.error(frame.command.subscribe.request_id, ServerError.ConsumerBusy, "taken")
            )
            return True
        return False

    broker.intercept = busy
    with pytest.raises(BrokerRefused, match="ConsumerBusy: taken") as refusal:
        await client.subscribe("t", "s")
    assert refusal.value.code == ServerError.ConsumerBusy
    broker.intercept = lambda session, frame: False
    consumer = await client.subscribe("t", "s")
    await consumer.close()
    await consumer.close()
    with pytest.raises(AlreadyClosed):
        await consumer.receive_batch()
    with pytest.raises(InvalidUse, match="durable=False"):
        await client.subscribe("t", "s", start=MessageId.EARLIEST)


async def test_closing_wakes_whoever_waits(broker: FakeBroker, client: Client) -> None:
    consumer = await client.subscribe("t", "s")
    waiting = asyncio.ensure_future(consumer.receive_batch())
    await asyncio.sleep(0)
    await consumer.close()
    with pytest.raises(AlreadyClosed):
        await waiting


async def test_waiting_in_vain_leaves_nothing_behind(broker: FakeBroker, client: Client) -> None:
    consumer = await client.subscribe("t", "s")
    for _ in range(20):
        assert await consumer.receive(timeout_s=0.001) is None
    assert not consumer._inbox._bells
    waiting = asyncio.ensure_future(consumer.receive())
    await asyncio.sleep(0)
    waiting.cancel()
    consumer._inbox.ring(1)  # Nobody is left to hear it.
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_seek_that_is_refused_costs_no_delivery_and_no_permit(
    broker: FakeBroker, client: Client
) -> None:
    await fill(client, 1)
    consumer = await client.subscribe("t", "s", receiver_queue_size=2)
    assert await take(consumer, 1) == [[b"0"]]

    def refusing(session: Session, frame: Frame) -> bool:
        if frame.type != BaseCommand.SEEK:
            return False
        ((consumer_id, _),) = session.subscribers.items()
        entries = broker.topic(TOPIC).entries
        entries.append(entries[0])
        broker.deliver()  # On its way while the seek is asked for.
        assert consumer_id in session.subscribers
        session.write(
            commands.error(frame.command.seek.request_id, ServerError.NotAllowedError, "no seeking here")
        )
        return True

    broker.intercept = refusing
    for _ in range(3):
        with pytest.raises(BrokerRefused, match="no seeking here"):
            await consumer.seek(MessageId.EARLIEST)
        assert await take(consumer, 1) == [[b"0"]]


async def test_a_seek_past_a_message_acknowledges_what_it_passes_over(
    broker: FakeBroker, client: Client
) -> None:
    """The broker begins with the entry named: left unacknowledged, it would be backlog for ever."""
    await fill(client, 1, 3)
    consumer = await client.subscribe("t", "s", type="shared")
    await take(consumer, 2)
    broker.intercept = seek_like_a_broker(broker, 0)
    await consumer.seek(MessageId(LEDGER, 0))
    assert await take(consumer, 1) == [[b"1", b"2", b"3"]]
    await consumer.flush_acknowledgements()
    assert broker.acknowledged == [(0, [], False)]
    broker.acknowledged.clear()
    broker.intercept = seek_like_a_broker(broker, 1)
    await consumer.seek(MessageId(LEDGER, 1, -1, 0, 3))
    for _ in range(2):
        message = await consumer.receive(2)
        assert message is not None
        consumer.acknowledge(message)
    await consumer.flush_acknowledgements()
    assert broker.acknowledged == [(1, [], False)], "both messages that were left are acknowledged"


async def test_a_reader_keeps_nothing_of_the_chunks_it_has_read(broker: FakeBroker, client: Client) -> None:
    broker.max_message_bytes = 5000
    producer = await client.create_producer("t", chunking=True, batching=False)
    for _ in range(3):
        await producer.send(bytes(9000))
    reader = await client.create_reader("t", start=MessageId.EARLIEST)
    for _ in range(3):
        message = await reader.read(2)
        assert message is not None
        assert len(message.data) == 9000
    (link,) = reader._consumer.links
    assert link._chunk_ids == {}
