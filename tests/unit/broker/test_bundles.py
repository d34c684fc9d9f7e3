"""How a namespace is divided."""

from __future__ import annotations

import pytest

from magnetar.broker.namespaces.bundles import Bundle, Bundles, topic_hash
from magnetar.naming import NamespaceName, TopicName

NAMESPACE = NamespaceName("public", "default")


def test_four_even_bundles() -> None:
    bundles = Bundles.even(NAMESPACE, 4)
    assert bundles.texts() == ["0x00000000", "0x40000000", "0x80000000", "0xc0000000", "0xffffffff"]
    assert str(bundles[0]) == "public/default/0x00000000_0x40000000"
    assert Bundles.parse(NAMESPACE, bundles.texts()) == bundles


@pytest.mark.parametrize("count", [1, 3, 4, 16])
def test_every_topic_lies_in_exactly_one_bundle(count: int) -> None:
    bundles = Bundles.even(NAMESPACE, count)
    for number in range(200):
        topic = TopicName.parse(f"t{number}")
        holding = [bundles[index] for index in range(len(bundles)) if bundles[index].holds(topic_hash(topic))]
        assert holding == [bundles.find(topic)]


def test_the_last_hash_of_all_has_a_home() -> None:
    last = Bundle(NAMESPACE, 0xC000_0000, 0xFFFF_FFFF)
    assert last.holds(0xFFFF_FFFF)


@pytest.mark.parametrize(
    "boundaries", [[], ["0x00000000"], ["0x00000001", "0xffffffff"], ["0x00000000", "0x5", "0x4"]]
)
def test_boundaries_must_make_sense(boundaries: list[str]) -> None:
    with pytest.raises(ValueError, match="boundaries"):
        Bundles.parse(NAMESPACE, boundaries)
