"""The broker's limit of unacknowledged messages: who is blocked for it, and until when."""

from __future__ import annotations

from magnetar.broker.dispatch.unacked_share import UnackedBudget, UnackedShare
from magnetar.protocol.pulsar_pb2 import CommandSubscribe
from tests.unit.broker.conftest import Connect, StartBroker
from tests.unit.broker.raw_client import until


def made(budget: UnackedBudget, heard: list[str], name: str) -> UnackedShare:
    share = budget.share(lambda: heard.append(name))
    assert share is not None
    return share


def test_without_a_limit_nothing_is_counted() -> None:
    assert UnackedBudget(0, 0.16).share(lambda: None) is None


def test_only_those_with_more_than_their_share_are_blocked() -> None:
    budget, heard = UnackedBudget(100, 0.2), list[str]()
    large, small = made(budget, heard, "large"), made(budget, heard, "small")
    small.taken(15)
    large.taken(84)
    assert not large.blocked
    large.taken(1)
    assert budget.blocked
    assert large.blocked
    small.taken(5)
    assert not small.blocked, "its share is twenty"
    small.taken(1)
    assert small.blocked
    assert budget.blocks == 2


def test_who_comes_well_below_its_share_goes_on() -> None:
    budget, heard = UnackedBudget(100, 0.2), list[str]()
    large, other = made(budget, heard, "large"), made(budget, heard, "other")
    other.taken(90)
    large.taken(21)
    assert large.blocked
    large.released(11)
    assert large.blocked, "ten is half of its share, not below it"
    large.released(1)
    assert not large.blocked
    assert heard == ["large"]
    assert budget.blocked


def test_half_of_the_limit_frees_all() -> None:
    budget, heard = UnackedBudget(100, 0.2), list[str]()
    one, two = made(budget, heard, "one"), made(budget, heard, "two")
    one.taken(60)
    two.taken(60)
    assert not one.blocked, "it had what it has before there was a limit to keep"
    one.taken(1)
    assert one.blocked
    assert two.blocked
    two.released(60)
    one.released(12)
    assert heard == ["two", "one"]
    assert not budget.blocked
    assert budget.used == 49


async def test_a_hoarding_subscription_does_not_stop_the_others(
    start_broker: StartBroker, connect: Connect
) -> None:
    broker = await start_broker(max_unacked_messages_per_broker=10, max_unacked_share_when_blocked=0.5)
    client = await connect(to=broker)
    for subscription in ("hoards", "acknowledges"):
        consumer_id = 1 if subscription == "hoards" else 2
        await client.subscribe("t", subscription, consumer_id, kind=CommandSubscribe.Shared)
    await client.produce("t")
    for number in range(20):
        client.send(b"%d" % number, number)
    for _ in range(20):
        await client.expect("send_receipt")
    client.flow(100, 1)
    got = [await client.expect("message", where=lambda body: body.consumer_id == 1) for _ in range(10)]
    await client.hears_nothing("message")
    client.flow(100, 2)
    for _ in range(20):
        message = (await client.expect("message", where=lambda body: body.consumer_id == 2)).message_id
        client.ack((message.ledgerId, message.entryId), consumer_id=2)
    await client.hears_nothing("message")
    assert broker.context.unacked.used == 10
    ids = [(each.message_id.ledgerId, each.message_id.entryId) for each in got[:7]]
    client.ack(*ids, consumer_id=1)
    for _ in range(7):
        await client.expect("message", where=lambda body: body.consumer_id == 1)
    client.abort()
    await until(lambda: not broker.connections)
    assert broker.context.unacked.used == 0, "what nobody has is nobody's"
