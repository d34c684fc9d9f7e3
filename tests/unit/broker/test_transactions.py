"""Transactions on the wire: what a client that speaks in frames sees of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

import pytest

from magnetar.broker.broker import Broker
from magnetar.broker.errors import BrokerError
from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.broker.transactions.coordinator_topic import CoordinatorTopic
from magnetar.broker.transactions.record_log import RecordLog
from magnetar.broker.transactions.txn_id import TxnId
from magnetar.managed_ledger import Position
from magnetar.naming import TopicName
from magnetar.protocol.entry import split_entry
from magnetar.protocol.message import split_message, verify_checksum
from magnetar.protocol.pulsar_pb2 import (
    ABORT,
    COMMIT,
    CommandSubscribe,
    MessageIdData,
    ServerError,
    Subscription,
)
from tests.unit.broker.raw_client import RawClient, until

Connect = Callable[..., Awaitable[RawClient]]

TOPIC = "persistent://public/default/orders"
COORDINATOR = "persistent://pulsar/system/transaction_coordinator_assign"
Txn = tuple[int, int]


async def begin(client: RawClient, tc: int = 0, ttl_ms: int = 60_000) -> Txn:
    """Do what clients do before their first transaction, and begin one."""
    found = await client.ask("partitionMetadata", "partitionMetadataResponse", topic=COORDINATOR)
    assert found.partitions == 16
    where = await client.ask("lookupTopic", "lookupTopicResponse", topic=f"{COORDINATOR}-partition-{tc}")
    assert where.brokerServiceUrl
    connected = await client.ask("tcClientConnectRequest", "tcClientConnectResponse", tc_id=tc)
    assert not connected.HasField("error"), connected
    made = await client.ask("newTxn", "newTxnResponse", tc_id=tc, txn_ttl_millis=ttl_ms)
    assert not made.HasField("error")
    assert made.txnid_most_bits == tc
    return made.txnid_most_bits, made.txnid_least_bits


def named(txn: Txn) -> dict[str, Any]:
    return {"txnid_most_bits": txn[0], "txnid_least_bits": txn[1]}


async def add_partition(client: RawClient, txn: Txn, topic: str = TOPIC) -> None:
    answer = await client.ask(
        "addPartitionToTxn", "addPartitionToTxnResponse", partitions=[topic], **named(txn)
    )
    assert not answer.HasField("error"), answer


async def add_subscription(client: RawClient, txn: Txn, name: str = "sub", topic: str = TOPIC) -> None:
    answer = await client.ask(
        "addSubscriptionToTxn",
        "addSubscriptionToTxnResponse",
        subscription=[Subscription(topic=topic, subscription=name)],
        **named(txn),
    )
    assert not answer.HasField("error"), answer


def send_in(client: RawClient, txn: Txn, payload: bytes, sequence_id: int, **fields: Any) -> None:
    client.send(payload, sequence_id, metadata=named(txn), **named(txn), **fields)


async def end(client: RawClient, txn: Txn, action: int = COMMIT) -> Any:
    return await client.ask("endTxn", "endTxnResponse", txn_action=action, **named(txn))


async def ack_in(
    client: RawClient, txn: Txn, *places: Any, cumulative: bool = False, ack_set: Any = (), size: int = 0
) -> Any:
    ids = [
        MessageIdData(ledgerId=each.ledgerId, entryId=each.entryId, ack_set=ack_set, batch_size=size)
        for each in places
    ]
    return await client.ask(
        "ack", "ackResponse", consumer_id=1, ack_type=int(cumulative), message_id=ids, **named(txn)
    )


def topic_of(broker: Broker, name: str = TOPIC) -> PersistentTopic:
    topic = broker.topics.find(TopicName.parse(name))
    assert isinstance(topic, PersistentTopic)
    return topic


def payloads(messages: list[tuple[Any, bytes]]) -> list[bytes]:
    return [bytes(split_message(split_entry(data).message).payload) for _, data in messages]


async def test_nothing_is_seen_before_the_commit_and_all_of_it_after(connect: Connect) -> None:
    client = await connect()
    await client.produce(TOPIC)
    await client.subscribe(TOPIC, permits=100)
    txn = await begin(client)
    await add_partition(client, txn)
    client.send(b"before", 0)
    send_in(client, txn, b"one", 1)
    client.send(b"behind", 2)
    send_in(client, txn, b"two", 3)
    for sequence_id in range(4):
        receipt = await client.expect("send_receipt")
        assert receipt.sequence_id == sequence_id
    assert payloads(await client.messages(1)) == [b"before"]
    await client.hears_nothing("message")
    last = await client.ask("getLastMessageId", "getLastMessageIdResponse", consumer_id=1)
    assert (last.last_message_id.ledgerId, last.last_message_id.entryId) == (1, 0)
    assert not (await end(client, txn)).HasField("error")
    assert payloads(await client.messages(3)) == [b"one", b"behind", b"two"]
    await client.hears_nothing("message")
    last = await client.ask("getLastMessageId", "getLastMessageIdResponse", consumer_id=1)
    assert last.last_message_id.entryId == 3  # Not the marker behind it.


async def test_nothing_of_an_aborted_transaction_is_ever_seen(broker: Broker, connect: Connect) -> None:
    client = await connect()
    await client.produce(TOPIC)
    await client.subscribe(TOPIC, permits=100)
    txn = await begin(client)
    await add_partition(client, txn)
    send_in(client, txn, b"never", 0)
    client.send(b"plain", 1)
    await client.expect("send_receipt", where=lambda body: body.sequence_id == 1)
    assert not (await end(client, txn, ABORT)).HasField("error")
    assert payloads(await client.messages(1)) == [b"plain"]
    await client.hears_nothing("message")
    client.ack((1, 1))
    # What nobody may see is acknowledged by the broker itself.
    await until(lambda: topic_of(broker).subscriptions["sub"].cursor.backlog == 0)
    # A message that comes late is refused, and the others go on.
    send_in(client, txn, b"late", 2)
    error = await client.expect("send_error")
    assert error.error == ServerError.NotAllowedError
    assert error.sequence_id == 2


async def test_a_message_belongs_to_a_transaction_though_only_the_command_says_so(connect: Connect) -> None:
    """Clients in Go leave it out of the metadata, which is what is stored."""
    client = await connect()
    await client.produce(TOPIC)
    await client.subscribe(TOPIC, permits=100)
    aborted, kept = await begin(client), await begin(client)
    for sequence_id, txn in enumerate((aborted, kept)):
        await add_partition(client, txn)
        client.send(b"%d" % sequence_id, sequence_id, **named(txn))
        await client.expect("send_receipt")
    await client.hears_nothing("message")
    assert not (await end(client, aborted, ABORT)).HasField("error")
    assert not (await end(client, kept)).HasField("error")
    ((_, data),) = await client.messages(1)
    assert payloads([(None, data)]) == [b"1"]
    verify_checksum(split_entry(data).message)
    await client.hears_nothing("message")


async def test_a_transaction_outlives_the_broker_that_it_began_on(
    start_broker: Any, connect: Connect
) -> None:
    broker = await start_broker()
    client = await connect(to=broker)
    await client.produce(TOPIC)
    kept, dropped, open_ = [await begin(client, tc=3) for _ in range(3)]
    for number, txn in enumerate((kept, dropped, open_)):
        await add_partition(client, txn)
        send_in(client, txn, b"%d" % number, number)
        await client.expect("send_receipt")
    assert not (await end(client, dropped, ABORT)).HasField("error")
    store = broker.context.metadata
    await broker.stop()
    again = await start_broker(store=store)
    client = await connect(to=again)
    await client.subscribe(TOPIC, permits=100)
    await client.hears_nothing("message")
    connected = await client.ask("tcClientConnectRequest", "tcClientConnectResponse", tc_id=3)
    assert not connected.HasField("error")
    assert not (await end(client, kept)).HasField("error")
    assert payloads(await client.messages(1)) == [b"0"]
    await client.hears_nothing("message")
    assert not (await end(client, open_)).HasField("error")
    assert payloads(await client.messages(1)) == [b"2"]
    # An answer that was lost is asked for again; the other way it cannot end any more.
    assert not (await end(client, kept)).HasField("error")
    assert (await end(client, kept, ABORT)).error == ServerError.InvalidTxnStatus
    assert (await end(client, (3, 77))).error == ServerError.TransactionNotFound


async def test_acknowledgements_count_with_the_commit(broker: Broker, connect: Connect) -> None:
    client = await connect()
    await client.produce(TOPIC)
    await client.subscribe(TOPIC, kind=CommandSubscribe.Shared, permits=100)
    for number in range(3):
        client.send(b"%d" % number, number)
    places = [body.message_id for body, _ in await client.messages(3)]
    first, second = await begin(client), await begin(client, tc=1)
    for txn in (first, second):
        await add_subscription(client, txn)
    answer = await ack_in(client, first, *places[:2])
    assert not answer.HasField("error")
    assert answer.txnid_least_bits == first[1]
    conflict = await ack_in(client, second, places[1])
    assert conflict.error == ServerError.TransactionConflict
    assert not (await ack_in(client, second, places[2])).HasField("error")
    subscription = topic_of(broker).subscriptions["sub"]
    assert subscription.cursor.backlog == 3
    # Held messages go to nobody, not even when their consumer leaves.
    other = await connect()
    await other.subscribe(TOPIC, kind=CommandSubscribe.Shared, permits=100)
    await client.close()
    await other.hears_nothing("message")
    assert not (await end(other, second)).HasField("error")
    assert subscription.cursor.backlog == 2
    assert not (await end(other, first, ABORT)).HasField("error")
    assert payloads(await other.messages(2)) == [b"0", b"1"]


@pytest.mark.parametrize("action", [COMMIT, ABORT])
async def test_provisional_acknowledgements_outlive_the_broker(
    start_broker: Any, connect: Connect, action: int
) -> None:
    broker = await start_broker()
    client = await connect(to=broker)
    await client.produce(TOPIC)
    await client.subscribe(TOPIC, kind=CommandSubscribe.Shared, permits=100)
    client.send_batch([b"a", b"b", b"c"], 0)
    client.send(b"d", 3)
    places = [body.message_id for body, _ in await client.messages(2)]
    txn = await begin(client)
    await add_subscription(client, txn)
    assert not (await ack_in(client, txn, places[0], ack_set=[0b101], size=3)).HasField("error")
    assert not (await ack_in(client, txn, places[1])).HasField("error")
    store = broker.context.metadata
    await broker.stop()
    again = await start_broker(store=store)
    client = await connect(to=again)
    await client.subscribe(TOPIC, kind=CommandSubscribe.Shared, permits=100)
    ((partly, _),) = await client.messages(1)
    assert list(partly.ack_set) == [0b101]
    await client.hears_nothing("message")
    assert not (await end(client, txn, action)).HasField("error")
    cursor = topic_of(again).subscriptions["sub"].cursor
    if action == COMMIT:
        await client.hears_nothing("message")
        assert cursor.backlog == 1
        assert cursor.ack_set(Position(places[0].ledgerId, places[0].entryId)) == [0b101]
    else:
        assert len(await client.messages(2)) == 2
        assert cursor.backlog == 2


async def test_cumulative_acknowledgements_come_again_in_order_after_an_abort(
    broker: Broker, connect: Connect
) -> None:
    client = await connect()
    await client.produce(TOPIC)
    await client.subscribe(TOPIC, permits=100)
    for number in range(4):
        client.send(b"%d" % number, number)
    places = [body.message_id for body, _ in await client.messages(4)]
    txn, other = await begin(client), await begin(client)
    for each in (txn, other):
        await add_subscription(client, each)
    assert not (await ack_in(client, txn, places[2], cumulative=True)).HasField("error")
    conflict = await ack_in(client, other, places[3], cumulative=True)
    assert conflict.error == ServerError.TransactionConflict
    assert not (await end(client, txn, ABORT)).HasField("error")
    assert payloads(await client.messages(4)) == [b"0", b"1", b"2", b"3"]
    assert not (await ack_in(client, other, places[3], cumulative=True)).HasField("error")
    assert not (await end(client, other)).HasField("error")
    assert topic_of(broker).subscriptions["sub"].cursor.backlog == 0


async def test_a_transaction_ends_by_itself_when_its_time_is_over(connect: Connect) -> None:
    client = await connect()
    await client.produce(TOPIC)
    await client.subscribe(TOPIC, permits=100)
    txn = await begin(client, ttl_ms=100)
    await add_partition(client, txn)
    send_in(client, txn, b"never", 0)
    client.send(b"plain", 1)
    assert payloads(await client.messages(1)) == [b"plain"]
    assert (await end(client, txn)).error == ServerError.InvalidTxnStatus


async def test_where_transactions_are_switched_off_every_command_says_so(
    start_broker: Any, connect: Connect
) -> None:
    client = await connect(to=await start_broker(transaction_coordinator_enabled=False))
    await client.produce(TOPIC)
    await client.subscribe(TOPIC)
    for field, answer, fields in (
        ("tcClientConnectRequest", "tcClientConnectResponse", {"tc_id": 0}),
        ("newTxn", "newTxnResponse", {"tc_id": 0, "txn_ttl_millis": 1000}),
        ("addPartitionToTxn", "addPartitionToTxnResponse", {**named((0, 1)), "partitions": [TOPIC]}),
        ("addSubscriptionToTxn", "addSubscriptionToTxnResponse", named((0, 1))),
        ("endTxn", "endTxnResponse", named((0, 1))),
        ("endTxnOnPartition", "endTxnOnPartitionResponse", {**named((0, 1)), "topic": TOPIC}),
        (
            "endTxnOnSubscription",
            "endTxnOnSubscriptionResponse",
            {**named((0, 1)), "subscription": Subscription(topic=TOPIC, subscription="sub")},
        ),
    ):
        refused = await client.ask(field, answer, **fields)
        assert refused.error == ServerError.NotAllowedError, field
    send_in(client, (0, 1), b"no", 0)
    assert (await client.expect("send_error")).error == ServerError.NotAllowedError
    refused = await ack_in(client, (0, 1), MessageIdData(ledgerId=1, entryId=0))
    assert refused.error == ServerError.NotAllowedError
    found = await client.ask("partitionMetadata", "partitionMetadataResponse", topic=COORDINATOR)
    assert found.error == ServerError.NotAllowedError


async def test_commands_out_of_order_are_refused(broker: Broker, connect: Connect) -> None:
    client = await connect()
    await client.produce(TOPIC)
    await client.subscribe(TOPIC)
    absent = await client.ask("tcClientConnectRequest", "tcClientConnectResponse", tc_id=0)
    assert absent.error == ServerError.TransactionCoordinatorNotFound  # Nobody asked for its topic yet.
    txn = await begin(client)
    absent = await client.ask("tcClientConnectRequest", "tcClientConnectResponse", tc_id=16)
    assert absent.error == ServerError.TransactionCoordinatorNotFound
    refused = await client.ask(
        "addPartitionToTxn", "addPartitionToTxnResponse", partitions=["not a topic://"], **named(txn)
    )
    assert refused.error == ServerError.InvalidTopicName
    for field, answer in (
        ("addPartitionToTxn", "addPartitionToTxnResponse"),
        ("addSubscriptionToTxn", "addSubscriptionToTxnResponse"),
    ):
        refused = await client.ask(field, answer, **named((0, 99)))
        assert refused.error == ServerError.TransactionNotFound
    assert not (await end(client, txn)).HasField("error")
    refused = await client.ask(
        "addPartitionToTxn", "addPartitionToTxnResponse", partitions=[TOPIC], **named(txn)
    )
    assert refused.error == ServerError.InvalidTxnStatus
    # The command names another transaction than what would be stored.
    client.send(b"no", 0, metadata=named((0, 2)), **named(txn))
    assert (await client.expect("send_error")).error == ServerError.NotAllowedError
    refused = await ack_in(client, txn, MessageIdData(ledgerId=1, entryId=5))
    assert refused.error == ServerError.MetadataError  # There is no such entry.


async def test_a_deleted_topic_holds_up_no_commit(broker: Broker, connect: Connect) -> None:
    client = await connect()
    await client.produce(TOPIC)
    await client.subscribe(TOPIC)
    txn = await begin(client)
    await add_partition(client, txn)
    await add_subscription(client, txn)
    await add_subscription(client, txn, "no-such-subscription")
    send_in(client, txn, b"one", 0)
    receipt = await client.expect("send_receipt")
    assert not (await ack_in(client, txn, receipt.message_id)).HasField("error")
    await broker.topics.delete(TopicName.parse(TOPIC), force=True)
    assert not (await end(client, txn)).HasField("error")


Calls = tuple[Callable[[], Coroutine[Any, Any, None]], ...]


async def check_both_wait(records: RecordLog, monkeypatch: pytest.MonkeyPatch, calls: Calls) -> None:
    """Each call, made twice, must end only when its record is stored."""
    store, held = records.store, asyncio.Event()

    def store_later(record: Mapping[str, Any]) -> asyncio.Future[Position]:
        async def stored() -> Position:
            await held.wait()
            return await store(record)

        return asyncio.ensure_future(stored())

    monkeypatch.setattr(records, "store", store_later)
    for call in calls:
        held.clear()
        twice = [asyncio.create_task(call()) for _ in range(2)]
        done, _ = await asyncio.wait(twice, timeout=0.05)
        assert not done
        held.set()
        await asyncio.gather(*twice)


async def test_nobody_is_told_of_what_is_not_stored_yet(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that asks again, because its first answer does not come, is not told sooner for that."""
    client = await connect()
    txn = TxnId(*await begin(client))
    coordinator = topic_of(broker, f"{COORDINATOR}-partition-0")
    assert isinstance(coordinator, CoordinatorTopic)
    calls: Calls = (
        lambda: coordinator.add_partitions(txn, [TOPIC], None),
        lambda: coordinator.add_subscriptions(txn, [(TOPIC, "sub")], None),
        lambda: coordinator.end(txn, commit=False),
    )
    await check_both_wait(coordinator.records, monkeypatch, calls)


async def test_a_subscription_that_is_told_an_end_twice_answers_when_it_is_stored(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator that has taken over tells it again, and forgets the transaction after the answer."""
    client = await connect()
    await client.produce(TOPIC)
    await client.subscribe(TOPIC, kind=CommandSubscribe.Shared, permits=100)
    client.send(b"one", 0)
    ((place, _),) = await client.messages(1)
    txn = await begin(client)
    await add_subscription(client, txn)
    assert not (await ack_in(client, txn, place.message_id)).HasField("error")
    pending = topic_of(broker).subscriptions["sub"].pending_acks
    assert pending is not None
    calls: Calls = (lambda: pending.end(TxnId(*txn), commit=True, watermark=0),)
    await check_both_wait(pending.records, monkeypatch, calls)


async def test_no_acknowledgement_is_told_of_before_it_is_stored(broker: Broker, connect: Connect) -> None:
    """Neither by an acknowledgement that comes again, nor by an end that does."""
    client = await connect()
    await client.produce(TOPIC)
    await client.subscribe(TOPIC, kind=CommandSubscribe.Shared, permits=10)
    client.send(b"one", 0)
    ((message, _),) = await client.messages(1)
    txn = await begin(client)
    await add_subscription(client, txn)
    store = await topic_of(broker).subscriptions["sub"].with_pending_acks()
    log: Any = store.records.ledger
    log.hold_appends = True
    for number in range(2):
        ids = [MessageIdData(ledgerId=message.message_id.ledgerId, entryId=message.message_id.entryId)]
        client.say("ack", consumer_id=1, ack_type=0, message_id=ids, request_id=100 + number, **named(txn))
    await client.hears_nothing("ackResponse")
    log.release_appends()
    for _ in range(2):
        assert not (await client.expect("ackResponse")).HasField("error")
    log.hold_appends = True
    ends = [asyncio.create_task(store.end(TxnId(*txn), commit=True, watermark=0)) for _ in range(2)]
    done, _ = await asyncio.wait(ends, timeout=0.05)
    assert not done
    log.release_appends()
    await asyncio.gather(*ends)


async def check_none_behind_a_failure(
    topic: PersistentTopic, records: RecordLog, monkeypatch: pytest.MonkeyPatch, calls: Calls
) -> None:
    """The first call's record cannot be stored. That later ones can must not let it pass for stored."""
    monkeypatch.setattr(topic, "_reload", lambda: None)  # Which takes its time.
    log: Any = records.ledger
    log.fail_appends = True
    first, *others = calls
    with pytest.raises(BrokerError):
        await first()
    log.fail_appends = False
    for call in (*others, first):
        with pytest.raises(BrokerError):
            await call()


async def test_a_commit_that_is_not_in_the_log_is_never_told_of(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await connect()
    txn, other = TxnId(*await begin(client)), TxnId(*await begin(client))
    coordinator = topic_of(broker, f"{COORDINATOR}-partition-0")
    assert isinstance(coordinator, CoordinatorTopic)
    calls: Calls = (
        lambda: coordinator.end(txn, commit=True),
        lambda: coordinator.add_partitions(other, [TOPIC], None),
    )
    await check_none_behind_a_failure(coordinator, coordinator.records, monkeypatch, calls)


async def test_an_end_that_is_not_in_a_subscriptions_log_is_never_told_of(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await connect()
    await client.produce(TOPIC)
    await client.subscribe(TOPIC, kind=CommandSubscribe.Shared, permits=10)
    txn, other = TxnId(*await begin(client)), TxnId(*await begin(client))
    topic = topic_of(broker)
    store = await topic.subscriptions["sub"].with_pending_acks()
    calls: Calls = (
        lambda: store.end(txn, commit=True, watermark=0),
        lambda: store.end(other, commit=True, watermark=0),
    )
    await check_none_behind_a_failure(topic, store.records, monkeypatch, calls)


async def test_an_end_is_seen_through_though_whoever_asked_is_gone(broker: Broker, connect: Connect) -> None:
    """An administrator's request may be cut off; the next who asks must not be told that all is done."""
    client = await connect()
    await client.produce(TOPIC)
    await client.subscribe(TOPIC, permits=10)
    txn = await begin(client)
    await add_partition(client, txn)
    send_in(client, txn, b"one", 0)
    await client.expect("send_receipt")
    coordinator = topic_of(broker, f"{COORDINATOR}-partition-0")
    assert isinstance(coordinator, CoordinatorTopic)
    log: Any = coordinator.records.ledger
    log.hold_appends = True
    asked = asyncio.create_task(coordinator.end(TxnId(*txn), commit=True))
    await asyncio.sleep(0)
    asked.cancel()
    await asyncio.wait([asked])
    log.release_appends()
    assert not (await end(client, txn)).HasField("error")
    assert payloads(await client.messages(1)) == [b"one"]
