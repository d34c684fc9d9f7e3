"""Topics of a namespace, patterns, hashes and watchers."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.broker.broker import Broker
from magnetar.broker.errors import InvalidTopic, NotAllowed
from magnetar.broker.topic_lists import TopicPattern
from magnetar.naming import NamespaceName, TopicName
from magnetar.protocol.topic_lists import topics_hash
from tests.unit.broker.conftest import Connect

PREFIX = "persistent://public/default/"


def test_the_hash_is_the_one_clients_compute() -> None:
    assert topics_hash([]) == "00000000"
    assert topics_hash([PREFIX + "a"]) == "e4a876e3"
    assert topics_hash([PREFIX + "b", PREFIX + "a"]) == "c7559e98"


def test_patterns_match_without_scheme_and_partition() -> None:
    topics = [PREFIX + "foo-partition-0", PREFIX + "foo-bar", PREFIX + "other"]
    assert TopicPattern(PREFIX + "foo.*").matching(topics) == topics[:2]
    assert TopicPattern("public/default/foo").matching(topics) == topics[:1]


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+b",
        "(a*)*",
        "(a|aa)+",
        "(?:x.*)+",
        ".*.*.*.*x",
        "((a{2,}){3,})",
        "(a?){40}a{40}",
        "((a?)){40}x",
        "a?" * 20 + "a" * 20,
        "(?:.?){60}~",
        "(a|a)" * 20 + "x",
        "(?x)#[\n(a?){40}x#]",
        "(?#[)(a?){40}x(?#])",
    ],
)
def test_patterns_that_may_run_for_ever_are_refused(pattern: str) -> None:
    with pytest.raises(NotAllowed):
        TopicPattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "public/default/.*",
        "(a|b)-.*",
        "[a-z+*]+",
        r"x\.\+.*",
        "a{3}b*",
        "public/default/(?:a|b-.*)",
        "(?i)colou?r-(?P<x>[0-9]+?)",
        "(a|b|c|d|e|f|g|h|i|j|k|l)-x",
    ],
)
def test_ordinary_patterns_are_not(pattern: str) -> None:
    TopicPattern(pattern)


def test_what_is_no_pattern() -> None:
    with pytest.raises(InvalidTopic):
        TopicPattern("public/default/(")


async def test_partitions_are_listed_and_system_topics_are_not(connect: Connect, broker: Broker) -> None:
    client = await connect()
    await broker.context.resources.create_partitioned(TopicName.parse("parts"), 2)
    for number, name in enumerate(("plain", "parts-partition-1", "__change_events")):
        await client.produce(PREFIX + name, number)
    await client.produce("non-persistent://public/default/np", 9)
    answer = await client.ask(
        "getTopicsOfNamespace", "getTopicsOfNamespaceResponse", namespace="public/default"
    )
    expected = [PREFIX + name for name in ("parts-partition-0", "parts-partition-1", "plain")]
    assert list(answer.topics) == expected
    assert (answer.filtered, answer.changed) == (False, True)
    assert answer.topics_hash == topics_hash(expected)
    again = await client.ask(
        "getTopicsOfNamespace",
        "getTopicsOfNamespaceResponse",
        namespace="public/default",
        topics_hash=answer.topics_hash,
    )
    assert (list(again.topics), again.changed) == ([], False)
    everything = await client.ask(
        "getTopicsOfNamespace", "getTopicsOfNamespaceResponse", namespace="public/default", mode=2
    )
    assert "non-persistent://public/default/np" in everything.topics


async def test_a_short_pattern_is_evaluated_here(connect: Connect) -> None:
    client = await connect()
    for number, name in enumerate(("foo", "bar")):
        await client.produce(PREFIX + name, number)
    answer = await client.ask(
        "getTopicsOfNamespace",
        "getTopicsOfNamespaceResponse",
        namespace="public/default",
        topics_pattern="public/default/f.*",
    )
    assert (list(answer.topics), answer.filtered) == ([PREFIX + "foo"], True)
    for pattern in ("public/default/" + "f" * 50, "(f+)+"):
        answer = await client.ask(
            "getTopicsOfNamespace",
            "getTopicsOfNamespaceResponse",
            namespace="public/default",
            topics_pattern=pattern,
        )
        assert (len(answer.topics), answer.filtered) == (2, False)


async def test_topics_of_an_unknown_namespace(connect: Connect) -> None:
    client = await connect()
    answer = await client.ask("getTopicsOfNamespace", "getTopicsOfNamespaceResponse", namespace="no/such")
    assert list(answer.topics) == []
    assert (await client.ask("getTopicsOfNamespace", namespace="nonsense")).error == 17


async def test_a_watcher_hears_what_comes_and_goes(connect: Connect, broker: Broker) -> None:
    client = await connect(version="Pulsar-Java-v4.0.0")
    await client.produce(PREFIX + "foo-1")
    answer = await client.ask(
        "watchTopicList",
        "watchTopicListSuccess",
        watcher_id=7,
        namespace="public/default",
        topics_pattern=PREFIX + "foo-.*",
    )
    assert list(answer.topic) == [PREFIX + "foo-1"]
    await broker.context.resources.create_partitioned(TopicName.parse("foo-2"), 1)
    update = await client.expect("watchTopicUpdate")
    assert (update.watcher_id, list(update.new_topics)) == (7, [PREFIX + "foo-2-partition-0"])
    assert update.topics_hash == topics_hash([PREFIX + "foo-1", PREFIX + "foo-2-partition-0"])
    await broker.context.resources.delete_partitioned(TopicName.parse("foo-2"))
    update = await client.expect("watchTopicUpdate")
    assert list(update.deleted_topics) == [PREFIX + "foo-2-partition-0"]
    await client.ask("watchTopicListClose", watcher_id=7)
    assert not broker.topic_lists.watchers


async def test_one_of_two_watchers_of_one_number_is_enough(connect: Connect, broker: Broker) -> None:
    """Asked for at once, both were made, and the first stayed when the client was gone."""
    client = await connect(version="Pulsar-Java-v4.0.0")
    for request_id in (1, 2):
        client.say(
            "watchTopicList",
            request_id=request_id,
            watcher_id=7,
            namespace="public/default",
            topics_pattern=PREFIX + "foo-.*",
        )
    for _ in range(2):
        await client.expect("watchTopicListSuccess")
    assert len(broker.topic_lists.watchers) == 1
    await client.ask("watchTopicListClose", watcher_id=7)
    assert not broker.topic_lists.watchers


async def test_a_watcher_that_is_closed_before_it_has_a_list_is_gone(
    connect: Connect, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing, go_on = asyncio.Event(), asyncio.Event()

    async def slow(namespace: NamespaceName, mode: str = "PERSISTENT", *, system: bool = False) -> list[str]:
        listing.set()
        await go_on.wait()
        return []

    monkeypatch.setattr(broker.topic_lists, "topics", slow)
    client = await connect(version="Pulsar-Java-v4.0.0")
    client.say(
        "watchTopicList",
        request_id=1,
        watcher_id=7,
        namespace="public/default",
        topics_pattern=PREFIX + "foo-.*",
    )
    await listing.wait()
    await client.ask("watchTopicListClose", watcher_id=7)
    go_on.set()
    await client.expect("watchTopicListSuccess")
    assert not broker.topic_lists.watchers


async def test_too_long_a_pattern_is_refused_to_watch(connect: Connect) -> None:
    client = await connect()
    answer = await client.ask(
        "watchTopicList", watcher_id=1, namespace="public/default", topics_pattern="x" * 51
    )
    assert answer.error == 22
