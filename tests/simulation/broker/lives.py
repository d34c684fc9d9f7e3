"""The kinds of lives there are."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.broker.deduplication_life import DeduplicationLife
from tests.simulation.broker.stories import Life
from tests.simulation.broker.subscription_life import SubscriptionLife

LIVES: dict[str, Callable[[int], Life]] = {
    "subscription": SubscriptionLife,
    "deduplication": DeduplicationLife,
}
