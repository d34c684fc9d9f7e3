"""Filters of users: what they say holds, and what happens when they die, hang, or make mistakes."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.broker import Broker
from magnetar.broker.entry_filters import frames
from magnetar.broker.entry_filters.host import EntryFilterHost, FilterFailed
from magnetar.broker.entry_filters.process import Filters, serve
from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.naming import TopicName
from magnetar.policies.delivery import EntryFilters
from magnetar.policies.effective import PolicyDefaults
from magnetar.protocol.pulsar_pb2 import CommandSubscribe, KeyValue
from tests.unit.broker.conftest import Connect, StartBroker
from tests.unit.broker.raw_client import RawClient, until
from tests.unit.broker.test_filters import entry

TOPIC = "persistent://public/default/t"

BY_COLOUR = """
def filter_entry(message):
    print("what filters print is no answer")
    colour = message.properties.get("colour", "")
    if colour == "late" and message.publish_time_ms < 1000:
        return "RESCHEDULE" if not seen(message) else "ACCEPT"
    return "REJECT" if colour == "red" else "ACCEPT"

times = {}

def seen(message):
    times[message.message_id] = times.get(message.message_id, 0) + 1
    return times[message.message_id] > 1
"""
DIES = """
import os
from pathlib import Path

def filter_entries(messages):
    mended = Path(__file__).with_name("mended")
    if not mended.exists():
        os._exit(3)
    return ["ACCEPT"] * len(messages)
"""
ONLY_OURS = """
def filter_entries(messages):
    return ["ACCEPT" if m.subscription_properties.get("who") == m.key else "REJECT" for m in messages]
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name, source in {"colour": BY_COLOUR, "dies": DIES, "ours": ONLY_OURS}.items():
        (tmp_path / f"{name}.py").write_text(source)
    (tmp_path / "raises.py").write_text("def filter_entry(message):\n    return 1 / 0\n")
    (tmp_path / "mumbles.py").write_text("def filter_entry(message):\n    return 'PERHAPS'\n")
    (tmp_path / "short.py").write_text("def filter_entries(messages):\n    return []\n")
    (tmp_path / "hangs.py").write_text("import time\n\ndef filter_entry(message):\n    time.sleep(60)\n")
    (tmp_path / "empty.py").write_text("")
    return tmp_path


# What is said between the two.


def asked(*names: str, count: int = 3, **metadata: Any) -> bytes:
    entries = [entry(number, **metadata) for number in range(count)]
    head = {
        "filters": list(names),
        "topic": TOPIC,
        "subscription": "s",
        "properties": {},
        "positions": [(each.position.ledger_id, each.position.entry_id) for each in entries],
    }
    return frames.encode(head, [each.data for each in entries])


def answered(directory: Path, *questions: bytes) -> list[dict[str, Any]]:
    answers = io.BytesIO()
    serve(Filters(directory), io.BytesIO(b"".join(questions)), answers)
    told = answers.getvalue()
    heads = []
    while told:
        size = int.from_bytes(told[:4], "big")
        heads.append(frames.decode(told[4 : 4 + size])[0])
        told = told[4 + size :]
    return heads


def colour(name: str) -> dict[str, Any]:
    return {"properties": [KeyValue(key="colour", value=name)]}


def test_the_first_filter_that_does_not_accept_decides(directory: Path) -> None:
    red, blue = asked("colour", **colour("red")), asked("colour", "ours", partition_key="x", **colour("blue"))
    assert answered(directory, red, blue, asked()) == [
        {"verdicts": "RRR"},
        {"verdicts": "RRR"},
        {"verdicts": "AAA"},
    ]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("raises", "ZeroDivisionError"),
        ("mumbles", "PERHAPS"),
        ("short", "answered 0 times for 3"),
        ("missing", "no entry filter"),
        ("empty", "neither filter_entry nor filter_entries"),
    ],
)
def test_a_mistake_is_told_and_the_next_question_answered(directory: Path, name: str, reason: str) -> None:
    told = answered(directory, asked(name), asked("colour"))
    assert reason in told[0]["error"]
    assert told[1] == {"verdicts": "AAA"}


def test_what_is_no_frame_is_refused() -> None:
    with pytest.raises(ValueError, match="says it has"):
        frames.decode(frames.encode({"a": 1}, [b"xyz"])[4:-1])
    head, pieces = frames.decode(frames.encode({"a": 1}, [b"", b"xyz"])[4:])
    assert (head, [bytes(each) for each in pieces]) == ({"a": 1}, [b"", b"xyz"])


# The process.


async def test_a_process_that_hangs_is_another_the_next_time(directory: Path) -> None:
    host = EntryFilterHost(str(directory), timeout_s=1.0)

    async def judge(name: str) -> str:
        return await host.judge([name], [entry(0)], topic=TOPIC, subscription="s", properties={})

    try:
        with pytest.raises(FilterFailed, match="TimeoutError"):
            await judge("hangs")
        host._timeout_s = 60.0
        with pytest.raises(FilterFailed, match="IncompleteReadError"):
            await judge("dies")
        assert await judge("colour") == "A"
        assert host.starts == 3
        assert host.missing(["colour", "nobody", "../colour"]) == ["nobody", "../colour"]
    finally:
        await host.close()
    with pytest.raises(FilterFailed, match="entry_filters_directory"):
        await judge("colour")


# Subscriptions.


async def filtered(start_broker: StartBroker, directory: Path, *names: str) -> Broker:
    broker = await start_broker(entry_filters_directory=str(directory), entry_filter_reschedule_s=0.05)
    await broker.context.resources.update_topic_policies(
        TopicName.parse(TOPIC),
        lambda said: said.changed(entry_filters=EntryFilters(entry_filter_names=",".join(names))),
    )
    return broker


def topic_of(broker: Broker) -> PersistentTopic:
    topic = broker.topics.find(TopicName.parse(TOPIC))
    assert isinstance(topic, PersistentTopic)
    return topic


async def publish(client: RawClient, *colours: str) -> None:
    await client.produce(TOPIC, 100)
    for number, name in enumerate(colours):
        client.send(b"x", number, 100, metadata=colour(name))
        await client.expect("send_receipt")


async def arrivals(client: RawClient, count: int) -> list[int]:
    return [(await client.expect("message")).message_id.entryId for _ in range(count)]


@pytest.mark.parametrize("kind", [CommandSubscribe.Exclusive, CommandSubscribe.Shared])
async def test_what_is_rejected_is_acknowledged_and_told(
    connect: Connect, start_broker: StartBroker, directory: Path, kind: int
) -> None:
    broker = await filtered(start_broker, directory, "colour")
    client = await connect(to=broker)
    await publish(client, "red", "blue", "red", "green")
    await client.subscribe(TOPIC, kind=kind, permits=10)
    assert await arrivals(client, 2) == [1, 3]
    await client.hears_nothing("message")
    subscription = topic_of(broker).subscriptions["sub"]
    assert subscription.cursor.backlog == 2
    told = subscription.stats()
    assert (told["filterProcessedMsgCount"], told["filterRejectedMsgCount"]) == (4, 2)


async def test_who_shares_gets_the_others_first(
    connect: Connect, start_broker: StartBroker, directory: Path
) -> None:
    broker = await filtered(start_broker, directory, "colour")
    client = await connect(to=broker)
    await publish(client, "late", "blue", "late", "green")
    await client.subscribe(TOPIC, kind=CommandSubscribe.Shared, permits=10)
    assert await arrivals(client, 4) == [1, 3, 0, 2]
    assert topic_of(broker).subscriptions["sub"].stats()["filterRescheduledMsgCount"] == 2


async def test_where_order_matters_the_others_wait(
    connect: Connect, start_broker: StartBroker, directory: Path
) -> None:
    broker = await filtered(start_broker, directory, "colour")
    client = await connect(to=broker)
    await publish(client, "blue", "late", "green", "late", "red")
    await client.subscribe(TOPIC, permits=10)
    assert await arrivals(client, 4) == [0, 1, 2, 3]


async def test_redelivered_messages_are_judged_again(
    connect: Connect, start_broker: StartBroker, directory: Path
) -> None:
    broker = await filtered(start_broker, directory, "colour")
    client = await connect(to=broker)
    await publish(client, "blue")
    await client.subscribe(TOPIC, kind=CommandSubscribe.Shared, permits=10)
    await arrivals(client, 1)
    (directory / "colour2.py").write_text("def filter_entry(message):\n    return 'REJECT'\n")
    topic = topic_of(broker)
    await broker.context.resources.update_topic_policies(
        TopicName.parse(TOPIC),
        lambda said: said.changed(entry_filters=EntryFilters(entry_filter_names="colour2")),
    )
    await until(lambda: topic.policies.entry_filters == ("colour2",))
    client.say("redeliverUnacknowledgedMessages", consumer_id=1)
    await until(lambda: topic.subscriptions["sub"].cursor.backlog == 0)
    await client.hears_nothing("message")


async def test_nothing_passes_a_filter_that_cannot_be_asked_and_nothing_is_lost(
    connect: Connect, start_broker: StartBroker, directory: Path
) -> None:
    broker = await filtered(start_broker, directory, "dies")
    client = await connect(to=broker)
    await publish(client, "blue", "green")
    await client.subscribe(TOPIC, permits=10)
    gate = topic_of(broker).subscriptions["sub"].entry_filters
    assert gate is not None
    await until(lambda: gate.failures >= 1)
    await client.hears_nothing("message")
    (directory / "mended").write_text("")
    assert await arrivals(client, 2) == [0, 1]


@pytest.mark.parametrize("name", ["dies", "hangs"])
@pytest.mark.parametrize("ending", ["unload", "seek"])
async def test_who_waits_for_a_filter_can_be_stopped(
    connect: Connect, start_broker: StartBroker, directory: Path, name: str, ending: str
) -> None:
    broker = await filtered(start_broker, directory, name)
    client = await connect(to=broker)
    await publish(client, "blue")
    await client.subscribe(TOPIC, permits=10)
    host = broker.context.entry_filters
    await until(lambda: host.starts >= 1)
    ends: Callable[[], Any] = {
        "unload": lambda: broker.topics.unload(TopicName.parse(TOPIC)),
        "seek": lambda: topic_of(broker).subscriptions["sub"].reset_to_time(0),
    }[ending]
    async with asyncio.timeout(5):
        await ends()


@pytest.mark.parametrize("others", ["colour", ""])
@pytest.mark.parametrize("kind", [CommandSubscribe.Exclusive, CommandSubscribe.Shared])
async def test_who_waits_for_filters_that_fail_gets_by_with_others(
    connect: Connect, start_broker: StartBroker, directory: Path, kind: int, others: str
) -> None:
    broker = await filtered(start_broker, directory, "raises")
    client = await connect(to=broker)
    await publish(client, "blue", "green")
    await client.subscribe(TOPIC, kind=kind, permits=10)
    topic = topic_of(broker)
    failing = topic.subscriptions["sub"].entry_filters
    assert failing is not None
    await until(lambda: failing.failures >= 1)
    await broker.context.resources.update_topic_policies(
        TopicName.parse(TOPIC),
        lambda said: said.changed(entry_filters=EntryFilters(entry_filter_names=others)),
    )
    assert await arrivals(client, 2) == [0, 1]
    async with asyncio.timeout(5):
        await broker.topics.unload(TopicName.parse(TOPIC))


@pytest.mark.parametrize(
    "kind", [CommandSubscribe.Exclusive, CommandSubscribe.Shared, CommandSubscribe.Key_Shared]
)
async def test_what_is_skipped_while_filters_are_asked_is_not_delivered(
    connect: Connect, start_broker: StartBroker, directory: Path, kind: int
) -> None:
    broker = await filtered(start_broker, directory, "dies")
    client = await connect(to=broker)
    await publish(client, "blue", "green")
    await client.subscribe(TOPIC, kind=kind, permits=10)
    subscription = topic_of(broker).subscriptions["sub"]
    await until(lambda: subscription.entry_filters is not None and subscription.entry_filters.failures >= 1)
    assert await subscription.skip(1) == 1
    (directory / "mended").write_text("")
    assert await arrivals(client, 1) == [1]
    await client.hears_nothing("message")


async def test_who_waits_for_filters_does_not_stand_still(
    connect: Connect, start_broker: StartBroker, directory: Path
) -> None:
    broker = await filtered(start_broker, directory, "raises")
    client = await connect(to=broker)
    await publish(client, "blue")
    await client.subscribe(TOPIC, permits=10)
    subscription = topic_of(broker).subscriptions["sub"]
    await until(lambda: subscription.entry_filters is not None and subscription.entry_filters.failures >= 1)
    assert subscription.stats()["idleReason"] == "entry filters are asked, or want to see it later"


async def test_the_platform_may_filter_everything_but_not_its_own_topics(
    connect: Connect, start_broker: StartBroker, directory: Path
) -> None:
    broker = await start_broker(
        PolicyDefaults(entry_filters=("ours",)), entry_filters_directory=str(directory)
    )
    client = await connect(to=broker)
    await client.produce(TOPIC, 100)
    for number, key in enumerate(("me", "you", "me")):
        client.send(b"x", number, 100, metadata={"partition_key": key})
        await client.expect("send_receipt")
    await client.subscribe(TOPIC, subscription_properties=[KeyValue(key="who", value="me")], permits=10)
    assert await arrivals(client, 2) == [0, 2]
    system = await broker.context.resources.effective(
        TopicName.parse("persistent://public/default/__change_events")
    )
    assert system.entry_filters == ()
