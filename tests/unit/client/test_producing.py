"""Producers: batches, receipts, resending, deduplication, limits and time-outs."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.client import Client, MessageId, OutgoingMessage
from magnetar.client.errors import (
    AlreadyClosed,
    BrokerRefused,
    InvalidUse,
    MessageTooLarge,
    ProducerQueueFull,
    SendTimedOut,
)
from magnetar.client.producer import DUPLICATE, Producer
from magnetar.protocol import commands
from magnetar.protocol.batch import iterate_batch
from magnetar.protocol.frames import Frame
from magnetar.protocol.message import split_message
from magnetar.protocol.pulsar_pb2 import BaseCommand, ServerError
from tests.unit.client.fake_broker import LEDGER, FakeBroker, Session

TOPIC = "persistent://public/default/t"


def stored(broker: FakeBroker, topic: str = TOPIC) -> list[tuple[int, bytes]]:
    """Sequence id and payload of every message stored, in order."""
    found = []
    for entry in broker.topic(topic).entries:
        message = split_message(entry)
        if message.metadata.HasField("num_messages_in_batch"):
            found += [
                (single.sequence_id, bytes(payload))
                for single, payload in iterate_batch(message.metadata, message.payload)
            ]
        else:
            found.append((message.metadata.sequence_id, bytes(message.payload)))
    return found


async def test_what_is_sent_in_one_turn_shares_an_entry(broker: FakeBroker, client: Client) -> None:
    producer = await client.create_producer("t")
    ids = await asyncio.gather(*(producer.send(b"%d" % number) for number in range(5)))
    assert ids == [MessageId(LEDGER, 0, -1, index) for index in range(5)]
    assert stored(broker) == [(number, b"%d" % number) for number in range(5)]
    assert await producer.send(b"alone") == MessageId(LEDGER, 1)
    assert producer.last_sequence_id == 5


async def test_a_batch_is_sealed_by_count_by_size_and_by_time(broker: FakeBroker, client: Client) -> None:
    producer = await client.create_producer("t", batching_max_messages=3, batching_max_bytes=1000)
    for number in range(7):
        producer.send_nowait(b"%d" % number)
    for _ in range(3):
        producer.send_nowait(bytes(500))
    await broker.until(lambda: len(stored(broker)) == 10)
    sizes = [split_message(entry).metadata.num_messages_in_batch for entry in broker.topic(TOPIC).entries]
    assert sizes == [3, 3, 2, 1, 1]


async def test_everything_a_message_may_carry(broker: FakeBroker, client: Client) -> None:
    producer = await client.create_producer("t", compression="zstd", properties={"app": "test"})
    await producer.send_batch_nowait(
        [
            b"plain",
            OutgoingMessage(b"full", key="k", ordering_key=b"o", properties={"a": "b"}, event_time=9),
            OutgoingMessage(None, key="k"),
        ]
    )
    message = split_message(broker.topic(TOPIC).entries[0])
    plain, full, tombstone = iterate_batch(message.metadata, message.payload)
    assert bytes(plain[1]) == b"plain"
    assert (full[0].partition_key, full[0].ordering_key, full[0].event_time) == ("k", b"o", 9)
    assert {pair.key: pair.value for pair in full[0].properties} == {"a": "b"}
    assert tombstone[0].null_value
    assert tombstone[0].payload_size == 0
    await producer.send(b"later", deliver_at=123, key="x")
    alone = split_message(broker.topic(TOPIC).entries[1]).metadata
    assert (alone.deliver_at_time, alone.partition_key) == (123, "x")
    assert not alone.HasField("num_messages_in_batch")
    asked = broker.last(BaseCommand.PRODUCER).producer
    assert {pair.key: pair.value for pair in asked.metadata} == {"app": "test"}
    assert broker.heard[0].connect.client_version.startswith("Magnetar")


async def test_what_has_no_receipt_is_sent_again_in_order(broker: FakeBroker, client: Client) -> None:
    producer = await client.create_producer("t", batching=False)
    broker.holds_receipts = True
    futures = [producer.send_nowait(b"%d" % number) for number in range(3)]
    await broker.until(lambda: len(stored(broker)) == 3)
    broker.cut()
    broker.holds_receipts = False
    futures.append(producer.send_nowait(b"3"))
    ids = await asyncio.gather(*futures)
    assert [payload for _, payload in stored(broker)] == [b"0", b"1", b"2", b"0", b"1", b"2", b"3"]
    assert [message_id.entry_id for message_id in ids] == [3, 4, 5, 6]
    attempts = [command.producer for command in broker.heard if command.type == BaseCommand.PRODUCER]
    assert [attempt.epoch for attempt in attempts] == [0, 1]
    assert attempts[1].producer_name == producer.name
    assert not attempts[1].user_provided_producer_name


async def test_with_deduplication_nothing_is_stored_twice(broker: FakeBroker, client: Client) -> None:
    broker.deduplicates = True
    producer = await client.create_producer("t", producer_name="p")
    broker.holds_receipts = True
    first = producer.send_batch_nowait([b"0", b"1"])
    each = [producer.send_nowait(b"2"), producer.send_nowait(b"3")]
    await broker.until(lambda: len(stored(broker)) == 4)
    broker.cut()
    broker.holds_receipts = False
    last = producer.send_nowait(b"4")
    assert await first == [DUPLICATE, DUPLICATE]
    assert await asyncio.gather(*each) == [DUPLICATE, DUPLICATE]
    assert await last == MessageId(LEDGER, 2)
    assert stored(broker) == [(number, b"%d" % number) for number in range(5)]


@pytest.mark.parametrize("shift", range(6))
async def test_a_replay_with_shifted_batches_adds_only_what_is_new(
    broker: FakeBroker, client: Client, shift: int
) -> None:
    """A producer of the same name begins again from the start, cutting its batches elsewhere."""
    broker.deduplicates = True
    first = await client.create_producer("t", producer_name="p")
    await first.send_batch_nowait([b"%d" % number for number in range(7)])
    await first.close()
    again = await client.create_producer("t", producer_name="p", initial_sequence_id=-1)
    assert again.last_sequence_id == 6
    everything = [OutgoingMessage(b"%d" % number, sequence_id=number) for number in range(20)]
    cuts = [everything[:shift], *(everything[start : start + 6] for start in range(shift, 20, 6))]
    results = [message_id for cut in cuts for message_id in await again.send_batch_nowait(cut)]
    assert [message_id == DUPLICATE for message_id in results] == [number <= 6 for number in range(20)]
    assert stored(broker) == [(number, b"%d" % number) for number in range(20)]
    late = await again.send(b"old", sequence_id=3)
    assert late == DUPLICATE
    assert len(stored(broker)) == 20


async def test_a_batch_across_the_mark_is_cut_when_sent_again(broker: FakeBroker, client: Client) -> None:
    """The broker stored the first messages of a batch under another cut, as after a failover of the producer."""
    broker.deduplicates = True
    producer = await client.create_producer("t", producer_name="p", compression="lz4")
    broker.intercept = lambda session, frame: frame.type == BaseCommand.SEND
    whole = producer.send_batch_nowait([b"0", b"1", b"2"])
    each = [producer.send_nowait(b"%d" % number) for number in (3, 4)]
    await broker.until(lambda: broker.count(BaseCommand.SEND) == 2)
    broker.topic(TOPIC).last_sequence_ids["p"] = 1
    broker.intercept = lambda session, frame: False
    broker.cut()
    assert await whole == [DUPLICATE, DUPLICATE, MessageId(LEDGER, 0, -1, 0)]
    assert await asyncio.gather(*each) == [MessageId(LEDGER, 1, -1, 0), MessageId(LEDGER, 1, -1, 1)]
    assert stored(broker) == [(2, b"2"), (3, b"3"), (4, b"4")]


async def test_an_encoded_batch_never_straddles_the_mark(broker: FakeBroker, client: Client) -> None:
    broker.deduplicates = True
    broker.topic(TOPIC).last_sequence_ids["p"] = 5
    producer = await client.create_producer("t", producer_name="p")
    from magnetar.protocol.batch import BatchBuilder

    batch = BatchBuilder()
    batch.add_many([b"4", b"5", b"6"], range(4, 7))
    future = producer.send_encoded_batch_nowait(
        batch.payload(), batch.count, sequence_id=4, highest_sequence_id=6
    )
    assert await future == MessageId(LEDGER, 0)
    assert stored(broker) == [(6, b"6")]
    again = producer.send_encoded_batch_nowait(batch.payload(), 3, sequence_id=3, highest_sequence_id=5)
    assert await again == DUPLICATE


async def test_sequence_ids_with_gaps_and_out_of_order(broker: FakeBroker, client: Client) -> None:
    producer = await client.create_producer("t")
    futures = [producer.send_nowait(b"%d" % number, sequence_id=number) for number in (10, 14, 18, 12, 13)]
    futures.append(producer.send_nowait(b"next"))
    await asyncio.gather(*futures)
    assert [number for number, _ in stored(broker)] == [10, 14, 18, 12, 13, 14]
    batches = [split_message(entry).metadata for entry in broker.topic(TOPIC).entries]
    assert [(batch.sequence_id, batch.highest_sequence_id) for batch in batches] == [(10, 18), (12, 14)]
    with pytest.raises(InvalidUse, match="increase"):
        producer.send_batch_nowait([OutgoingMessage(b"", sequence_id=5), OutgoingMessage(b"", sequence_id=5)])
    with pytest.raises(InvalidUse, match="negative"):
        producer.send_nowait(b"", sequence_id=-4)


async def test_a_full_queue_pushes_back(broker: FakeBroker, client: Client) -> None:
    producer = await client.create_producer("t", batching=False, max_pending_messages=2)
    broker.holds_receipts = True
    first = [producer.send_nowait(b"a"), producer.send_nowait(b"b")]
    with pytest.raises(ProducerQueueFull, match="room"):
        producer.send_nowait(b"c")
    waiting = asyncio.ensure_future(producer.send(b"c"))
    await broker.until(lambda: len(stored(broker)) == 2)
    assert not waiting.done()
    broker.release_receipts()
    await asyncio.gather(*first, waiting)
    assert [payload for _, payload in stored(broker)] == [b"a", b"b", b"c"]


async def test_memory_is_bounded_over_all_producers(broker: FakeBroker) -> None:
    async with Client(broker.url, memory_limit_bytes=100_000) as client:
        producers = [await client.create_producer(f"t{number}") for number in range(2)]
        broker.holds_receipts = True
        futures = [producer.send_nowait(bytes(60_000)) for producer in producers[:1]]
        await broker.until(lambda: broker.count(BaseCommand.SEND) == 1)
        with pytest.raises(ProducerQueueFull):
            producers[1].send_nowait(bytes(60_000))
        room = asyncio.ensure_future(producers[1].send(bytes(60_000)))
        await asyncio.sleep(0)
        assert not room.done()
        broker.release_receipts()
        await asyncio.gather(*futures, room)


async def test_no_receipt_in_time_fails_everything_behind_it_too(broker: FakeBroker, client: Client) -> None:
    producer = await client.create_producer("t", batching=False, send_timeout_s=0.05)
    broker.holds_receipts = True
    futures = [producer.send_nowait(b"a"), producer.send_nowait(b"b")]
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert all(isinstance(result, SendTimedOut) for result in results)
    broker.release_receipts()  # Too late, and harmless.
    assert (await producer.send(b"c")).entry_id == 2


async def test_flush_waits_for_every_receipt_and_tells_errors(broker: FakeBroker, client: Client) -> None:
    producer = await client.create_producer("t", batching_max_delay_ms=10_000)
    await producer.flush()
    future = producer.send_nowait(b"a")
    await producer.flush()
    assert future.done()
    broker.intercept = lambda session, frame: refuse(session, frame, ServerError.NotAllowedError)
    failing = producer.send_nowait(b"b")
    with pytest.raises(BrokerRefused, match="no"):
        await producer.flush()
    assert isinstance(failing.exception(), BrokerRefused)
    broker.intercept = lambda session, frame: False
    assert (await producer.send(b"c")).entry_id == 1


def refuse(session: Session, frame: Frame, code: ServerError.ValueType) -> bool:
    if frame.type != BaseCommand.SEND:
        return False
    sent = frame.command.send
    session.write(
        commands.send_error(sent.producer_id, max(sent.sequence_id, sent.highest_sequence_id), code, "no")
    )
    return True


async def test_a_failed_write_is_tried_again_after_coming_to_rest(broker: FakeBroker, client: Client) -> None:
    """PersistenceError: close the producer on the same connection, open it anew, send again in order."""
    producer = await client.create_producer("t", batching=False)
    refused = iter([True])
    broker.intercept = lambda session, frame: (
        frame.type == BaseCommand.SEND
        and next(refused, False)
        and refuse(session, frame, ServerError.PersistenceError)
    )
    ids = [await producer.send_nowait(b"a")]
    assert ids == [MessageId(LEDGER, 0)]
    kinds = [command.type for command in broker.heard]
    assert kinds.count(BaseCommand.CONNECT) == 1
    assert kinds.count(BaseCommand.PRODUCER) == 2
    assert kinds.index(BaseCommand.CLOSE_PRODUCER) < len(kinds) - 1 - kinds[::-1].index(BaseCommand.PRODUCER)


async def test_a_terminated_topic_ends_the_producer(broker: FakeBroker, client: Client) -> None:
    producer = await client.create_producer("t")
    broker.intercept = lambda session, frame: refuse(session, frame, ServerError.TopicTerminatedError)
    with pytest.raises(BrokerRefused, match="TopicTerminatedError"):
        await producer.send(b"a")
    assert producer.closed
    with pytest.raises(BrokerRefused):
        producer.send_nowait(b"b")
    with pytest.raises(BrokerRefused):
        await producer.room()


async def test_a_receipt_out_of_step_costs_the_connection_only(broker: FakeBroker, client: Client) -> None:
    producer = await client.create_producer("t", batching=False)
    broken = iter([True])

    def skip_a_receipt(session: Session, frame: Frame) -> bool:
        if frame.type == BaseCommand.SEND and next(broken, False):
            session.write(commands.send_receipt(frame.command.send.producer_id, 99, LEDGER, 0))
            return True
        return False

    broker.intercept = skip_a_receipt
    assert (await producer.send(b"a")).entry_id == 0
    assert broker.count(BaseCommand.CONNECT) == 2


async def test_the_broker_lets_a_producer_go(broker: FakeBroker, client: Client) -> None:
    producer = await client.create_producer("t")
    (session,) = broker.sessions
    session.write(commands.broker_closes_producer(next(iter(session.producers))))
    await broker.until(lambda: broker.count(BaseCommand.PRODUCER) == 2)
    assert (await producer.send(b"a")).entry_id == 0
    assert broker.count(BaseCommand.CONNECT) == 1


async def test_a_producer_may_have_to_wait_its_turn(broker: FakeBroker) -> None:
    """`producer_ready=false`: the operation's time-out no longer holds."""
    async with Client(broker.url, operation_timeout_s=0.1) as client:
        held: list[tuple[Session, int]] = []

        def not_ready(session: Session, frame: Frame) -> bool:
            if frame.type != BaseCommand.PRODUCER:
                return False
            request_id = frame.command.producer.request_id
            session.producers[frame.command.producer.producer_id] = TOPIC, "p"
            session.write(commands.producer_success(request_id, "p", ready=False))
            held.append((session, request_id))
            return True

        broker.intercept = not_ready
        creating = asyncio.ensure_future(_open_without_limit(client))
        await broker.until(lambda: bool(held))
        await asyncio.wait([creating], timeout=0.2)
        assert not creating.done()
        session, request_id = held[0]
        session.write(commands.producer_success(request_id, "p", topic_epoch=4))
        producer = await creating
        await producer.send(b"a")


async def _open_without_limit(client: Client) -> Producer:
    return await client.create_producer("t", access_mode="wait_for_exclusive")


async def test_too_large_a_message_fails_or_goes_in_chunks(broker: FakeBroker, client: Client) -> None:
    broker.max_message_bytes = 20_000
    producer = await client.create_producer("t")
    with pytest.raises(MessageTooLarge, match="20000"):
        await producer.send(bytes(30_000))
    with pytest.raises(MessageTooLarge):
        producer.send_batch_nowait([bytes(15_000)] * 2)
    chunking = await client.create_producer("t", chunking=True)
    payload = bytes(range(256)) * 200
    message_id = await chunking.send(payload, key="k")
    entries = broker.topic(TOPIC).entries
    assert message_id.entry_id == len(entries) - 1
    chunks = [split_message(entry) for entry in entries]
    assert [chunk.metadata.chunk_id for chunk in chunks] == [0, 1, 2]
    assert {chunk.metadata.num_chunks_from_msg for chunk in chunks} == {3}
    assert len({chunk.metadata.sequence_id for chunk in chunks}) == 1
    assert b"".join(bytes(chunk.payload) for chunk in chunks) == payload
    sends = [command.send for command in broker.heard if command.type == BaseCommand.SEND]
    assert all(send.is_chunk for send in sends)


async def test_partitions_take_turns_and_keys_stay_together(broker: FakeBroker, client: Client) -> None:
    broker.partitions["persistent://public/default/t"] = 3
    producer = await client.create_producer("t", batching=False)
    ids = [await producer.send(b"") for _ in range(6)]
    assert sorted(message_id.partition for message_id in ids) == [0, 0, 1, 1, 2, 2]
    keyed = {(await producer.send(b"", key="same")).partition for _ in range(3)}
    assert len(keyed) == 1
    assert await client.partitions("t") == [f"{TOPIC}-partition-{index}" for index in range(3)]
    with pytest.raises(InvalidUse, match="partition"):
        producer.send_batch_nowait([OutgoingMessage(b"", key=str(number)) for number in range(20)])
    names = {
        command.producer.producer_name for command in broker.heard if command.type == BaseCommand.PRODUCER
    }
    assert names == {"", producer.name}


async def test_what_cannot_be_written_is_refused_at_once(broker: FakeBroker, client: Client) -> None:
    producer = await client.create_producer("t")
    beside = producer.send_nowait(b"fine")
    for wrong in ({"key": 7}, {"properties": {"a": 1}}, {"event_time": -1}):
        with pytest.raises(InvalidUse):
            producer.send_nowait(b"", **wrong)
    await beside
    surrogate = producer.send_nowait(b"", key="\ud800")
    with pytest.raises(InvalidUse, match="cannot be written"):
        await surrogate
    assert (await producer.send(bytearray(b"buffer"))).entry_id == 1  # type: ignore[arg-type]
    with pytest.raises(InvalidUse, match="cannot be written"):
        producer.send_batch_nowait([OutgoingMessage(b"", key="\ud800")])
    alone = await client.create_producer("alone", batching=False)
    with pytest.raises(InvalidUse, match="cannot be written"):
        alone.send_nowait(b"", properties={"name": "\ud800"})
    await alone.send(b"goes on")


async def test_a_producer_let_go_while_it_attaches_tries_again(broker: FakeBroker, client: Client) -> None:
    """CLOSE_PRODUCER in the same read as PRODUCER_SUCCESS: the attachment is over before it is noticed."""
    once = iter([True])

    def close_at_once(session: Session, frame: Frame) -> bool:
        if frame.type == BaseCommand.PRODUCER and next(once, False):
            asked = frame.command.producer
            session.write(
                commands.producer_success(asked.request_id, "p")
                + commands.broker_closes_producer(asked.producer_id)
            )
            return True
        return False

    broker.intercept = close_at_once
    producer = await client.create_producer("t")
    assert (await producer.send(b"x")).entry_id == 0
    assert broker.count(BaseCommand.PRODUCER) == 2


async def test_closing_does_not_wait_for_ever(broker: FakeBroker) -> None:
    client = Client(broker.url, operation_timeout_s=0.1)
    producer = await client.create_producer("t", send_timeout_s=0)
    broker.holds_receipts = True
    future = producer.send_nowait(b"no receipt will come")
    await producer.close()
    assert isinstance(future.exception(), AlreadyClosed)
    await client.close()


async def test_nothing_can_be_sent_after_closing(broker: FakeBroker, client: Client) -> None:
    producer = await client.create_producer("t")
    future = producer.send_nowait(b"flushed by closing")
    await producer.close()
    assert future.done()
    with pytest.raises(AlreadyClosed):
        producer.send_nowait(b"x")
    await producer.close()
    with pytest.raises(InvalidUse, match="encode"):
        (await client.create_producer("t")).send_nowait("text")  # type: ignore[arg-type]
