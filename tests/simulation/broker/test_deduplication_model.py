"""Random lives of producers on a topic with deduplication; more by `python -m tests.simulation.broker.stories deduplication`."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.simulation.broker.deduplication_life import DeduplicationLife
from tests.simulation.broker.stories import check


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Brokers that die have much to say."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("block", range(5))
def test_random_lives(block: int) -> None:
    check(DeduplicationLife, range(10_000 + block * 100, 10_000 + (block + 1) * 100))
