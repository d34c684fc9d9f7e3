"""A subscription that stands still is found, explained and set going; one that rests is left alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from magnetar.broker.broker import Broker
from magnetar.broker.dispatch.standstill import Remedy, Standstill
from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.broker.subscription import Subscription
from magnetar.naming import TopicName
from magnetar.protocol.pulsar_pb2 import CommandSubscribe
from tests.unit.broker.conftest import Connect, StartBroker
from tests.unit.broker.raw_client import RawClient, until


def test_it_is_woken_first_and_begun_anew_then() -> None:
    standstill = Standstill(30)
    looks = [standstill.look(could_move=True, moved=5, now=now) for now in (0, 10, 29, 30, 59, 60, 61)]
    assert looks == [Remedy.NONE] * 3 + [Remedy.WAKE, Remedy.NONE, Remedy.BEGIN_ANEW, Remedy.NONE]
    assert standstill.since(62) == 2


def test_whoever_moves_or_rests_is_left_alone() -> None:
    standstill = Standstill(30)
    assert all(
        standstill.look(could_move=True, moved=now, now=now) is Remedy.NONE for now in range(0, 200, 10)
    )
    assert all(
        standstill.look(could_move=False, moved=0, now=now) is Remedy.NONE for now in range(200, 400, 10)
    )
    assert standstill.look(could_move=True, moved=0, now=400) is Remedy.NONE
    assert standstill.look(could_move=True, moved=0, now=429) is Remedy.NONE, "it rested until a moment ago"
    assert standstill.look(could_move=True, moved=0, now=430) is Remedy.WAKE


def test_no_patience_is_endless_patience() -> None:
    standstill = Standstill(0)
    assert all(standstill.look(could_move=True, moved=0, now=now) is Remedy.NONE for now in range(0, 900, 30))


class _Time:
    """Jumps where a test wants it."""

    def __init__(self, real: Any) -> None:
        self.real = real
        self.ahead_s = 0.0

    def monotonic(self) -> float:
        return float(self.real.monotonic()) + self.ahead_s

    def time_ms(self) -> int:
        return int(self.real.time_ms())


async def stand(broker: Broker, client: RawClient, kind: int) -> tuple[Subscription, _Time]:
    """A consumer that got a message and wants more, and a clock to move."""
    clock = broker.context.clock = _Time(broker.context.clock)
    await client.subscribe("t", "s", kind=kind, permits=5)
    await client.produce("t")
    client.send(b"first")
    await client.expect("send_receipt")
    await client.expect("message")
    topic = broker.topics.find(TopicName.parse("t"))
    assert isinstance(topic, PersistentTopic)
    return topic.subscriptions["s"], clock


KINDS = [CommandSubscribe.Exclusive, CommandSubscribe.Shared, CommandSubscribe.Key_Shared]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_wake_that_was_lost_is_made_up_for(
    start_broker: StartBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    broker = await start_broker()
    client = await connect(to=broker)
    subscription, clock = await stand(broker, client, kind)
    assert (
        subscription.stats()["idleReason"] == "everything is sent, held back, or waits for acknowledgements"
    )
    with monkeypatch.context() as deaf:
        deaf.setattr(Subscription, "wake", lambda self: None)
        client.send(b"second", 1)
        await client.expect("send_receipt")
        await client.hears_nothing("message")
    broker.tick()
    clock.ahead_s += 31
    assert subscription.stats()["stuckSeconds"] >= 31
    assert subscription.stats()["idleReason"] == ""
    broker.tick()
    await client.expect("message")
    told = subscription.stats()
    assert (told["stuckHealed"], told["stuckReason"]) == (1, "nobody woke it")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_read_that_never_ends_is_given_up(
    start_broker: StartBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    broker = await start_broker()
    client = await connect(to=broker)
    subscription, clock = await stand(broker, client, kind)

    async def never(*_: Any) -> list[Any]:
        await asyncio.Event().wait()
        return []

    with monkeypatch.context() as stuck:
        stuck.setattr(subscription.cursor, "read", never)
        client.send(b"second", 1)
        await client.expect("send_receipt")
        await client.hears_nothing("message")
        broker.tick()
        for _ in range(2):
            clock.ahead_s += 31
            broker.tick()
    assert subscription.watchdog.last_reason == "a read has not ended"
    await client.expect("close_consumer")
    await client.subscribe("t", "s", 2, kind=kind, permits=5)
    bodies = [payload for _, payload in await client.messages(2)]
    assert [body[-len(b"second") :] for body in bodies][1] == b"second"
    assert subscription.watchdog.healed == 2


async def test_who_reads_what_is_due_later_only_does_not_stand_still(
    start_broker: StartBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long backlog of delayed messages, read to its end, sends nothing for long."""
    broker = await start_broker()
    client = await connect(to=broker)
    subscription, clock = await stand(broker, client, CommandSubscribe.Shared)
    later_ms = clock.time_ms() + 1_000_000
    read = subscription.cursor.read

    async def one_by_one(*_: Any) -> list[Any]:
        await asyncio.sleep(0)
        clock.ahead_s += 31
        broker.tick()
        return await read(1, 1 << 20)

    monkeypatch.setattr(subscription.cursor, "read", one_by_one)
    for number in range(6):
        client.send(b"later", number + 1, metadata={"deliver_at_time": later_ms})
        await client.expect("send_receipt")
    await until(lambda: subscription.delayed == 6)
    assert subscription.watchdog.healed == 0


async def test_who_has_a_reason_to_rest_is_not_disturbed(start_broker: StartBroker, connect: Connect) -> None:
    broker = await start_broker()
    client = await connect(to=broker)
    subscription, clock = await stand(broker, client, CommandSubscribe.Shared)
    for number in range(6):
        client.send(b"more", number + 1)
        await client.expect("send_receipt")
    await client.messages(4)
    assert subscription.stats()["idleReason"] == "no permits"
    for _ in range(5):
        clock.ahead_s += 31
        broker.tick()
    assert subscription.watchdog.healed == 0
    client.say("close_consumer", consumer_id=1, request_id=99)
    await client.expect("success")
    assert subscription.stats()["idleReason"] == "no consumers"
