"""Names as values."""

from __future__ import annotations

import pytest

from magnetar.naming import (
    InvalidName,
    InvalidNamespaceName,
    InvalidTopicName,
    NamespaceName,
    NamingError,
    TopicName,
    check_name,
)


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("orders", "persistent://public/default/orders"),
        ("t/n/orders", "persistent://t/n/orders"),
        ("persistent://t/n/a b:c~", "persistent://t/n/a b:c~"),
        ("non-persistent://t/n/orders", "non-persistent://t/n/orders"),
    ],
)
def test_short_and_full_names(text: str, full: str) -> None:
    name = TopicName.parse(text)
    assert str(name) == full
    assert TopicName.parse(full) == name
    assert name.persistent == full.startswith("persistent")


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "a/b",
        "persistent://t/n/",
        "persistent://t/cluster/n/topic",
        "kafka://t/n/x",
        "persistent://t//x",
        "persistent://t/n/x\n",
        "persistent:///n/x",
        "persistent://../n/x",
        "persistent://t t/n/x",
        "persistent://tö/n/x",
    ],
)
def test_what_is_no_topic_name(text: str) -> None:
    with pytest.raises(InvalidTopicName) as caught:
        TopicName.parse(text)
    assert isinstance(caught.value, NamingError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("local", "partition", "base"),
    [
        ("x", -1, "x"),
        ("x-partition-0", 0, "x"),
        ("x-partition-12", 12, "x"),
        ("x-partition-01", -1, "x-partition-01"),
        ("x-partition-", -1, "x-partition-"),
        ("x-partition-1-partition-2", 2, "x-partition-1"),
        ("-partition-1", -1, "-partition-1"),
    ],
)
def test_partitions_are_topics_with_a_suffix(local: str, partition: int, base: str) -> None:
    name = TopicName("persistent", "t", "n", local)
    assert name.partition == partition
    assert name.base.local_name == base
    if partition >= 0:
        assert name.base.partition_name(partition) == name


def test_the_managed_ledger_of_a_topic_is_named_as_java_encodes_it() -> None:
    name = TopicName.parse("persistent://t/n/a b~*é%")
    assert name.encoded_local == "a+b%7E*%C3%A9%25"
    assert name.managed_ledger_name == "t/n/persistent/a+b%7E*%C3%A9%25"
    assert str(name.namespace_name) == "t/n"


@pytest.mark.parametrize(
    ("text", "system"),
    [
        ("persistent://t/n/__change_events", True),
        ("persistent://t/n/__change_events-partition-0", True),
        ("persistent://t/n/x__transaction_pending_ack", True),
        ("persistent://pulsar/system/transaction_coordinator_assign-partition-3", True),
        ("persistent://pulsar/system/__transaction_log_3", True),
        ("persistent://t/n/transaction_coordinator_assign", False),
        ("persistent://t/n/orders", False),
    ],
)
def test_system_topics(text: str, system: bool) -> None:
    assert TopicName.parse(text).is_system is system


def test_namespaces() -> None:
    assert NamespaceName.parse("t/n") == NamespaceName("t", "n")
    for text in ("t", "t/n/x", "t/", "/n", "t t/n"):
        with pytest.raises(InvalidNamespaceName):
            NamespaceName.parse(text)


def test_plain_names() -> None:
    assert check_name("cluster", "us-west_1:a.b=c") == "us-west_1:a.b=c"
    for text in ("", "a b", "a/b", ".", "..", "ü"):
        with pytest.raises(InvalidName, match="cluster"):
            check_name("cluster", text)
