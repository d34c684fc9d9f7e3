"""Pages: made at most once a second, whoever asks, and prepared before."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from magnetar.metrics import registry
from magnetar.metrics.registry import MetricsRegistry
from magnetar.metrics.sample import Sample, gauge


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


async def read(metrics: MetricsRegistry) -> str:
    return b"".join([chunk async for chunk in metrics.page()]).decode()


async def test_a_page_is_good_for_a_second() -> None:
    clock, value = Clock(), [1]
    metrics = MetricsRegistry(clock)
    metrics.add(lambda: [gauge("m", value[0])])
    assert "m 1\n" in await read(metrics)
    value[0] = 2
    clock.now += 0.9
    assert "m 1\n" in await read(metrics)
    clock.now += 0.2
    assert "m 2\n" in await read(metrics)
    assert metrics.pages == 2


async def test_a_large_page_is_not_kept() -> None:
    def many() -> Iterator[Sample]:
        for number in range(registry.KEPT_BYTES_MAX // 100):
            yield gauge("m", number, {"topic": "x" * 100, "number": str(number)})

    metrics = MetricsRegistry(Clock())
    metrics.add(many)
    for _ in range(2):
        size = 0
        async for chunk in metrics.page():
            size += len(chunk)
        assert size > registry.KEPT_BYTES_MAX
    assert metrics.pages == 2


async def test_what_a_page_needs_is_asked_for_before_and_not_waited_for_long() -> None:
    figures: list[int] = []

    async def ask() -> None:
        figures.append(len(figures))

    async def fail() -> None:
        raise OSError("away")

    clock = Clock()
    metrics = MetricsRegistry(clock)
    metrics.add(lambda: [gauge("m", len(figures))])
    metrics.prepare(ask)
    metrics.prepare(fail)
    assert "m 1\n" in await read(metrics)

    async def never() -> None:
        await asyncio.Event().wait()

    metrics.prepare(never)
    clock.now += 2.0
    async with asyncio.timeout(registry.PREPARING_S_MAX + 5):
        assert "m 2\n" in await read(metrics)
