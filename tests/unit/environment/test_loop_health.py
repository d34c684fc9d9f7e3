"""The loop's lag and the collector's pauses, counted."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable

from magnetar.environment.loop_health import LoopHealth


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_a_held_loop_shows_as_lag() -> None:
    health = LoopHealth(interval_s=0.005)
    health.start()
    await until(lambda: health.samples >= 2)
    time.sleep(0.06)  # noqa: ASYNC251  # Holding the loop is the point.
    await until(lambda: health.lag_max_s >= 0.04)
    assert sum(health.lag_counts) == health.samples
    assert health.take_lag_max() >= 0.04
    assert health.take_lag_max() == 0.0
    health.stop()


async def test_collections_are_counted_until_stopped() -> None:
    health = LoopHealth()
    health.start()
    gc.collect()
    assert health.collections == 1
    assert 0 < health.gc_pause_max_s <= health.gc_pause_s
    health.stop()
    gc.collect()
    assert health.collections == 1
