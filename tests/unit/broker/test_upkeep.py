"""What housekeeping does: expiry, quotas, unused topics and subscriptions. Time is moved by hand."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from magnetar.broker.broker import Broker
from magnetar.broker.compaction.state import COMPACTION_CURSOR
from magnetar.broker.errors import BacklogExceeded, BacklogHeld
from magnetar.broker.upkeep import housekeeping
from magnetar.broker.upkeep.backlog_quota import breaches, entries_to_evict
from magnetar.broker.upkeep.chores import Chore, Chores, Rota
from magnetar.naming import NamespaceName, TopicName
from magnetar.policies.quotas import BacklogQuota, BacklogQuotaPolicy, BacklogQuotaType
from magnetar.policies.storage import InactiveTopicDeleteMode, InactiveTopicPolicies, RetentionPolicies
from magnetar.protocol.pulsar_pb2 import ServerError
from tests.unit.broker.conftest import Connect, StartBroker
from tests.unit.broker.hand_clock import Timed
from tests.unit.broker.memory_log import MemoryLogs
from tests.unit.broker.raw_client import RawClient, until

TOPIC = "persistent://public/default/t"
SIZE, AGE = BacklogQuotaType.destination_storage, BacklogQuotaType.message_age


@pytest.fixture
def timed(broker: Broker, logs: MemoryLogs) -> Timed:
    return Timed(broker, logs)


async def say(timed: Timed, **policies: Any) -> None:
    """Set policies of the topic, and wait until they hold."""
    name = TopicName.parse(TOPIC)
    topic = await timed.topic(TOPIC)
    resources = timed.broker.context.resources
    await resources.update_topic_policies(name, lambda said: said.changed(**policies))
    wanted = await resources.effective(name)
    await until(lambda: topic.policies == wanted)


async def publish(client: RawClient, count: int, first: int = 0, producer_id: int = 100) -> None:
    for number in range(first, first + count):
        client.send(b"x" * 100, number, producer_id)
        await client.expect("send_receipt")


async def keep(timed: Timed, chore: Chore) -> None:
    await timed.broker.housekeeper.keep([chore])


# When.


def test_each_chore_comes_at_its_own_interval_and_is_not_made_up_for() -> None:
    rota = Rota({Chore.EXPIRY: 10, Chore.QUOTAS: 3}, 100)
    assert (rota.take(102.9), rota.next_at) == ([], 103)
    assert (rota.take(103), rota.next_at) == ([Chore.QUOTAS], 106)
    assert rota.take(150) == [Chore.EXPIRY, Chore.QUOTAS]
    assert (rota.take(152), rota.next_at) == ([], 153)


async def test_a_topic_in_trouble_costs_no_other_its_turn(
    timed: Timed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "TOPIC_TIMEOUT_S", 0.01)
    hangs, raises, fine = [await timed.topic(f"{TOPIC}{number}") for number in range(3)]
    done: list[Chore] = []

    async def hang(_: object) -> None:
        await asyncio.Event().wait()

    async def fail(_: object) -> None:
        raise RuntimeError("trouble")

    async def keep_well(chores: list[Chore]) -> None:
        done.extend(chores)

    monkeypatch.setattr(hangs, "housekeeping", hang)
    monkeypatch.setattr(raises, "housekeeping", fail)
    monkeypatch.setattr(fine, "housekeeping", keep_well)
    await keep(timed, Chore.QUOTAS)
    assert done == [Chore.QUOTAS]


async def test_a_topic_whose_deletion_does_not_end_costs_no_other_its_turn(
    timed: Timed, logs: MemoryLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "TOPIC_TIMEOUT_S", 0.01)
    hangs, _ = [await timed.topic(f"{TOPIC}{number}") for number in range(2)]
    close, answers = hangs.ledger.close, asyncio.Event()

    async def slowly() -> None:
        await answers.wait()
        await close()

    monkeypatch.setattr(hangs.ledger, "close", slowly)
    timed.advance(1e6)
    async with asyncio.timeout(5):
        await keep(timed, Chore.INACTIVITY)
    assert list(logs.logs) == [hangs.ledger.name]
    answers.set()
    await until(lambda: not logs.logs)


# Time to live.


async def test_messages_that_outlived_their_time_are_acknowledged_for_every_subscription(
    connect: Connect, timed: Timed
) -> None:
    topic = await timed.topic(TOPIC)
    client = await connect()
    for number, name in enumerate(("a", "b")):
        await client.subscribe(TOPIC, name, number)
    await client.produce(TOPIC, 100)
    await publish(client, 3)
    timed.advance(50)
    await publish(client, 2, 3)
    await say(timed, message_ttl_in_seconds=60)
    await keep(timed, Chore.EXPIRY)
    assert [each.cursor.backlog for each in topic.subscriptions.values()] == [5, 5]
    timed.advance(11)
    await keep(timed, Chore.EXPIRY)
    for subscription in topic.subscriptions.values():
        told = subscription.stats()
        assert (told["msgBacklog"], told["totalMsgExpired"]) == (2, 3)
        assert told["lastExpireTimestamp"] == timed.clock.time_ms()
    client.flow(10, 0)
    frames = [await client.expect("message") for _ in range(2)]
    assert [frame.message_id.entryId for frame in frames] == [3, 4]


async def test_what_is_published_while_all_the_rest_expires_stays(
    connect: Connect, timed: Timed, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await timed.topic(TOPIC)
    client = await connect()
    first, second = [await topic.subscription(name, durable=True) for name in ("a", "b")]
    await client.produce(TOPIC, 100)
    await publish(client, 3)
    timed.advance(61)
    await say(timed, message_ttl_in_seconds=60)
    flush = first.cursor.flush

    async def slowly() -> None:
        await publish(client, 1, 3)
        await flush()

    monkeypatch.setattr(first.cursor, "flush", slowly)
    await keep(timed, Chore.EXPIRY)
    assert (first.cursor.backlog, second.cursor.backlog) == (1, 1)


@pytest.mark.parametrize("act", ["expire", "reset_to_time"])
async def test_what_is_published_while_a_time_is_searched_is_younger(
    connect: Connect, timed: Timed, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    topic = await timed.topic(TOPIC)
    client = await connect()
    subscription = await topic.subscription("s", durable=True)
    await client.produce(TOPIC, 100)
    await publish(client, 2)
    timed.advance(60)
    search = topic.ledger.position_at_time

    async def slowly(timestamp_ms: int) -> Any:
        found = await search(timestamp_ms)
        await publish(client, 1, 2)
        return found

    monkeypatch.setattr(topic.ledger, "position_at_time", slowly)
    if act == "expire":
        await subscription.expire(30)
    else:
        await subscription.reset_to_time(timed.clock.time_ms() - 30_000)
    assert subscription.cursor.backlog == 1


async def test_without_a_time_to_live_nothing_expires(connect: Connect, timed: Timed) -> None:
    topic = await timed.topic(TOPIC)
    client = await connect()
    await client.subscribe(TOPIC)
    await client.produce(TOPIC, 100)
    await publish(client, 1)
    timed.advance(1e6)
    await keep(timed, Chore.EXPIRY)
    assert topic.subscriptions["sub"].cursor.backlog == 1


# Backlog quotas.


def quota(policy: str, size: int = -1, seconds: int = -1) -> BacklogQuota:
    return BacklogQuota(limit_size=size, limit_time=seconds, policy=BacklogQuotaPolicy(policy))


def test_a_quota_is_exceeded_by_more_than_its_limit() -> None:
    quotas = {SIZE: quota("producer_exception", size=100), AGE: quota("consumer_backlog_eviction", seconds=5)}
    assert breaches(quotas, 100, 5.0) == []
    assert [breach.kind for breach in breaches(quotas, 101, None)] == [SIZE]
    assert [breach.policy for breach in breaches(quotas, 0, 5.1)] == ["consumer_backlog_eviction"]
    assert breaches({SIZE: quota("producer_exception"), AGE: quota("producer_exception")}, 1 << 60, 1e9) == []


def test_an_eviction_leaves_nine_tenths_of_the_quota() -> None:
    assert entries_to_evict(1000, 900, 9) == 0
    assert entries_to_evict(1000, 1000, 10) == 1
    assert entries_to_evict(1000, 2000, 20) == 11
    assert entries_to_evict(1000, 5000, 1) == 1
    assert entries_to_evict(1, 0, 0) == 0


@pytest.mark.parametrize(
    ("policy", "code", "kind"),
    [
        ("producer_request_hold", ServerError.ProducerBlockedQuotaExceededError, BacklogHeld),
        ("producer_exception", ServerError.ProducerBlockedQuotaExceededException, BacklogExceeded),
    ],
)
@pytest.mark.parametrize("measure", ["size", "age"])
async def test_producers_are_let_go_and_refused_until_the_backlog_fits_again(
    connect: Connect, timed: Timed, policy: str, code: int, kind: type[Exception], measure: str
) -> None:
    topic = await timed.topic(TOPIC)
    client = await connect()
    await client.subscribe(TOPIC)
    await client.produce(TOPIC, 100)
    await publish(client, 5)
    limits = {SIZE: quota(policy, size=400)} if measure == "size" else {AGE: quota(policy, seconds=30)}
    await say(timed, backlog_quota_map=limits)
    timed.advance(31)
    await keep(timed, Chore.QUOTAS)
    assert (await client.expect("close_producer")).producer_id == 100
    assert topic.producers == {}
    assert isinstance(topic.backlog.refusal(), kind)
    refused = await client.produce(TOPIC, 101)
    assert refused.error == code
    assert "quota" in refused.message
    await topic.subscriptions["sub"].skip_all()
    await keep(timed, Chore.QUOTAS)
    assert (await client.produce(TOPIC, 102)).producer_ready


async def test_messages_on_their_way_get_their_receipts_before_the_producer_is_let_go(
    connect: Connect, timed: Timed, logs: MemoryLogs
) -> None:
    topic = await timed.topic(TOPIC)
    client = await connect()
    await client.subscribe(TOPIC)
    await client.produce(TOPIC, 100)
    await publish(client, 5)
    await say(timed, backlog_quota_map={SIZE: quota("producer_request_hold", size=400)})
    log = logs.logs[TopicName.parse(TOPIC).managed_ledger_name]
    log.hold_appends = True
    client.send(b"late", 5, 100)
    await until(lambda: any(each.pending for each in topic.producers.values()))
    await keep(timed, Chore.QUOTAS)
    client.send(b"too late", 6, 100)
    await client.hears_nothing("close_producer", "send_receipt")
    log.release_appends()
    assert (await client.expect("send_receipt")).sequence_id == 5
    await client.expect("close_producer")
    await client.hears_nothing("send_receipt")
    assert log.number_of_entries == 6


async def test_an_eviction_takes_the_oldest_from_the_slowest(connect: Connect, timed: Timed) -> None:
    topic = await timed.topic(TOPIC)
    client = await connect()
    await client.subscribe(TOPIC, "slow", 1)
    await client.subscribe(TOPIC, "fast", 2)
    await client.produce(TOPIC, 100)
    await publish(client, 20)
    client.ack((1, 15), consumer_id=2, cumulative=True)
    await until(lambda: topic.subscriptions["fast"].cursor.backlog == 4)
    each_bytes = topic.subscriptions["slow"].cursor.backlog_bytes // 20
    await say(timed, backlog_quota_map={SIZE: quota("consumer_backlog_eviction", size=10 * each_bytes)})
    await keep(timed, Chore.QUOTAS)
    assert topic.subscriptions["slow"].cursor.backlog == 9
    assert topic.subscriptions["fast"].cursor.backlog == 4
    assert topic.backlog.size_evictions == 1
    assert topic.producers, "producers go on"
    client.flow(100, 1)
    assert (await client.expect("message")).message_id.entryId == 11


async def test_an_eviction_by_age_takes_exactly_what_is_too_old(connect: Connect, timed: Timed) -> None:
    topic = await timed.topic(TOPIC)
    client = await connect()
    await client.subscribe(TOPIC)
    await client.produce(TOPIC, 100)
    await publish(client, 3)
    timed.advance(100)
    await publish(client, 4, 3)
    await say(timed, backlog_quota_map={AGE: quota("consumer_backlog_eviction", seconds=50)})
    await keep(timed, Chore.QUOTAS)
    assert topic.subscriptions["sub"].cursor.backlog == 4
    assert topic.backlog.time_evictions == 1


async def test_statistics_tell_quotas_and_the_oldest_message(connect: Connect, timed: Timed) -> None:
    topic = await timed.topic(TOPIC)
    client = await connect()
    await client.subscribe(TOPIC)
    await client.produce(TOPIC, 100)
    assert topic.stats()["backlogQuotaLimitSize"] == -1
    published_ms = timed.clock.time_ms()
    await publish(client, 1)
    limits = {SIZE: quota("producer_exception", size=5000), AGE: quota("producer_exception", seconds=70)}
    await say(timed, backlog_quota_map=limits)
    timed.advance(7)
    await keep(timed, Chore.QUOTAS)
    told = topic.stats()
    assert (told["backlogQuotaLimitSize"], told["backlogQuotaLimitTime"]) == (5000, 70)
    assert told["oldestBacklogMessageAgeSeconds"] == 7
    assert told["oldestBacklogMessageSubscriptionName"] == "sub"
    assert told["earliestMsgPublishTimeInBacklogs"] == published_ms
    assert told["subscriptions"]["sub"]["earliestMsgPublishTimeInBacklog"] == published_ms


# Unused topics.


async def idle_until_deleted(timed: Timed, seconds: float) -> bool:
    await keep(timed, Chore.INACTIVITY)
    timed.advance(seconds)
    await keep(timed, Chore.INACTIVITY)
    return timed.broker.topics.find(TopicName.parse(TOPIC)) is None


async def test_a_topic_that_nobody_uses_is_deleted(timed: Timed, logs: MemoryLogs) -> None:
    await timed.topic(TOPIC)
    assert not await idle_until_deleted(timed, 59)
    timed.advance(1)
    await keep(timed, Chore.INACTIVITY)
    assert not logs.logs
    assert timed.broker.housekeeper.topics_deleted == 1


@pytest.mark.parametrize("user", ["producer", "subscription", "consumer"])
async def test_a_topic_that_somebody_uses_stays(connect: Connect, timed: Timed, user: str) -> None:
    topic = await timed.topic(TOPIC)
    client = await connect()
    if user == "producer":
        await client.produce(TOPIC)
    elif user == "subscription":
        await topic.subscription("s", durable=True)
    else:
        await client.subscribe(TOPIC, durable=False)
    assert not await idle_until_deleted(timed, 1e6)


async def test_a_topic_that_is_being_subscribed_to_stays(
    timed: Timed, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await timed.topic(TOPIC)
    opened, stored = topic.ledger.open_cursor, asyncio.Event()

    async def slowly(*args: Any, **options: Any) -> Any:
        await stored.wait()
        return await opened(*args, **options)

    monkeypatch.setattr(topic.ledger, "open_cursor", slowly)
    making = asyncio.create_task(topic.create_subscription("s"))
    await asyncio.sleep(0)
    timed.advance(1e6)
    async with asyncio.timeout(5):  # A deletion would wait for what is being stored.
        await keep(timed, Chore.INACTIVITY)
    stored.set()
    await making
    assert timed.broker.topics.find(TopicName.parse(TOPIC)) is topic
    assert not topic.subscriptions["s"].closed


@pytest.mark.parametrize("when", ["before", "while it closes"])
async def test_a_topic_that_was_lost_is_not_deleted(
    timed: Timed, logs: MemoryLogs, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """It is another broker's by now, and may have got messages there."""
    topic = await timed.topic(TOPIC)
    timed.advance(1e6)
    keeping, closing = topic.housekeeping, topic.ledger.close

    async def lost_before(chores: Chores) -> None:
        topic.lost = True
        await keeping(chores)

    async def lost_in_closing() -> None:
        topic.lost = True
        await closing()

    if when == "before":
        monkeypatch.setattr(topic, "housekeeping", lost_before)
    else:
        monkeypatch.setattr(topic.ledger, "close", lost_in_closing)
    await keep(timed, Chore.INACTIVITY)
    assert logs.logs
    assert timed.broker.housekeeper.topics_deleted == 0


async def test_a_use_between_two_looks_counts(connect: Connect, timed: Timed) -> None:
    await timed.topic(TOPIC)
    client = await connect()
    timed.advance(59)
    await client.produce(TOPIC, 1)
    client.say("close_producer", producer_id=1, request_id=99)
    await client.expect("success")
    timed.advance(30)
    await keep(timed, Chore.INACTIVITY)
    assert timed.broker.topics.find(TopicName.parse(TOPIC)) is not None


@pytest.mark.parametrize(
    "policies",
    [
        {"inactive_topic_policies": InactiveTopicPolicies(delete_while_inactive=False)},
        {"compaction_threshold": 1000},
        {
            "retention_policies": RetentionPolicies.read(
                {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
            )
        },
    ],
)
async def test_policies_keep_a_topic_that_nobody_uses(timed: Timed, policies: dict[str, Any]) -> None:
    await say(timed, **policies)
    assert not await idle_until_deleted(timed, 1e6)


async def test_a_topic_that_was_compacted_stays(timed: Timed) -> None:
    """Readers of tables leave no subscription behind."""
    topic = await timed.topic(TOPIC)
    await topic.ledger.open_cursor(COMPACTION_CURSOR)
    assert not await idle_until_deleted(timed, 1e6)


async def test_a_mode_counts_subscriptions_that_have_caught_up_as_none(
    connect: Connect, timed: Timed
) -> None:
    topic = await timed.topic(TOPIC)
    await say(
        timed,
        inactive_topic_policies=InactiveTopicPolicies(
            inactive_topic_delete_mode=InactiveTopicDeleteMode.delete_when_subscriptions_caught_up,
            max_inactive_duration_seconds=100,
            delete_while_inactive=True,
        ),
    )
    client = await connect()
    await topic.subscription("s", durable=True)
    await client.produce(TOPIC, 100)
    await publish(client, 1)
    client.say("close_producer", producer_id=100, request_id=99)
    await client.expect("success")
    assert not await idle_until_deleted(timed, 1000)
    await topic.subscriptions["s"].skip_all()
    await keep(timed, Chore.INACTIVITY)
    timed.advance(70)
    timed.broker.tick()  # Nobody uses it by that.
    timed.advance(31)
    await keep(timed, Chore.INACTIVITY)
    assert timed.broker.topics.find(TopicName.parse(TOPIC)) is None


async def test_a_partitioned_topic_is_forgotten_with_its_last_partition_where_that_is_wanted(
    start_broker: StartBroker, logs: MemoryLogs
) -> None:
    timed = Timed(await start_broker(delete_inactive_partitioned_metadata=True), logs)
    name = TopicName.parse(TOPIC)
    await timed.broker.context.resources.create_partitioned(name, 2, {})
    for number in range(2):
        await timed.topic(str(name.partition_name(number)))
    timed.advance(61)
    await keep(timed, Chore.INACTIVITY)
    assert await timed.broker.context.resources.partitions(name) is None


async def test_partitions_may_come_back_where_it_is_not(timed: Timed) -> None:
    name = TopicName.parse(TOPIC)
    await timed.broker.context.resources.create_partitioned(name, 1, {})
    await timed.topic(str(name.partition_name(0)))
    timed.advance(61)
    await keep(timed, Chore.INACTIVITY)
    assert not timed.broker.topics.loaded()
    await timed.topic(str(name.partition_name(0)))


# Unused subscriptions.


async def test_a_subscription_that_nobody_uses_is_deleted(connect: Connect, timed: Timed) -> None:
    topic = await timed.topic(TOPIC)
    client = await connect()
    await client.subscribe(TOPIC, "used", 1)
    await topic.subscription("unused", durable=True)
    resources = timed.broker.context.resources
    await resources.update_namespace(
        NamespaceName.parse("public/default"),
        lambda said: said.changed(subscription_expiration_time_minutes=10),
    )
    await until(lambda: topic.policies.subscription_expiration_s == 600)
    timed.advance(599)
    await keep(timed, Chore.SUBSCRIPTIONS)
    assert set(topic.subscriptions) == {"used", "unused"}
    timed.advance(1)
    await keep(timed, Chore.SUBSCRIPTIONS)
    assert set(topic.subscriptions) == {"used"}
