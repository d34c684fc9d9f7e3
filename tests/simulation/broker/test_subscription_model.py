"""Random lives of a subscription beside its model: 2,000 here, more by `python -m tests.simulation.broker.stories`."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.simulation.broker.stories import check, tell
from tests.simulation.broker.subscription_life import SubscriptionLife

BLOCKS, LIVES_IN_BLOCK = 10, 200
ONCE_WRONG = {
    449: "chunks that waited for their consumer took the room of everybody else",
}
"""Seeds that found a fault, and which; stories change with the code, and these are kept all the same."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Brokers that die have much to say."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("block", range(BLOCKS))
def test_random_lives(block: int) -> None:
    check(SubscriptionLife, range(10_000 + block * LIVES_IN_BLOCK, 10_000 + (block + 1) * LIVES_IN_BLOCK))


@pytest.mark.parametrize("seed", sorted(ONCE_WRONG))
def test_what_was_once_wrong(seed: int) -> None:
    check(SubscriptionLife, [seed])


def test_a_seed_tells_the_same_story_each_time() -> None:
    first, second = tell(SubscriptionLife, 3), tell(SubscriptionLife, 3)
    assert first.lines == second.lines
    assert len(first.lines) > 30


def test_lives_are_not_idle() -> None:
    """A model that sees nothing delivered proves nothing."""
    delivered = 0
    for seed in range(8):
        life = SubscriptionLife(seed)
        life.live(life.draw())
        delivered += life.reference.deliveries
    assert delivered > 100
