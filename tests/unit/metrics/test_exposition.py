"""Metrics as Prometheus reads them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

from prometheus_client.parser import text_string_to_metric_families

from magnetar.metrics.buckets import ENTRY_SIZE_BOUNDS_BYTES, Buckets
from magnetar.metrics.exposition import write
from magnetar.metrics.process import memory_of_tree_bytes, process_age_s, process_samples
from magnetar.metrics.registry import MetricsRegistry
from magnetar.metrics.sample import Sample, counter, gauge


def page(samples: list[Sample]) -> str:
    return b"".join(write(samples)).decode()


def test_one_line_a_sample_and_one_type_a_metric() -> None:
    text = page(
        [
            gauge("pulsar_rate_in", 1.5, {"topic": "a"}),
            gauge("pulsar_rate_in", 2, {"topic": "b"}),
            counter("pulsar_in_messages_total", 7),
        ]
    )
    assert text == (
        "# TYPE pulsar_rate_in gauge\n"
        'pulsar_rate_in{topic="a"} 1.5\n'
        'pulsar_rate_in{topic="b"} 2\n'
        "# TYPE pulsar_in_messages_total counter\n"
        "pulsar_in_messages_total 7\n"
    )


def test_what_prometheus_parses_is_what_was_meant() -> None:
    awkward = 'quote " backslash \\ newline \n ü'
    values = [0.1, float("inf"), float("-inf"), 1e300, 2**60]
    samples = [gauge("m", value, {"label": awkward, "n": str(n)}) for n, value in enumerate(values)]
    (family,) = text_string_to_metric_families(page(samples))
    assert [sample.value for sample in family.samples] == values
    assert {sample.labels["label"] for sample in family.samples} == {awkward}
    assert page([gauge("m", float("nan"))]).endswith("m NaN\n")
    assert page([gauge("m", True)]).endswith("m 1\n")


def test_a_large_page_comes_in_chunks_of_bounded_size() -> None:
    made = 0

    def many() -> Iterator[Sample]:
        nonlocal made
        for number in range(10_000):
            made += 1
            yield gauge("m", number, {"topic": f"persistent://public/default/topic-{number}"})

    chunks = write(many(), chunk_bytes=4096)
    first = next(chunks)
    assert 4096 <= len(first) < 4400
    assert made < 200, "samples are made as they are sent"
    assert sum(chunk.count(b"\n") for chunk in [first, *chunks]) == 10_001


async def test_a_collector_that_fails_costs_nobody_else_anything() -> None:
    registry = MetricsRegistry()

    def broken() -> Iterator[Sample]:
        yield gauge("before", 1)
        raise RuntimeError("a collector's own mistake")

    def whole() -> Iterator[Sample]:
        yield gauge("after", 2)

    registry.add(broken)
    registry.add(whole)
    text = b"".join([chunk async for chunk in registry.page()]).decode()
    assert "before 1" in text
    assert "after 2" in text
    registry.remove(broken)
    assert b"before" not in b"".join([chunk async for chunk in registry.page()])


async def test_the_loop_has_its_turn_between_chunks() -> None:
    registry = MetricsRegistry()
    registry.add(lambda: (gauge("m", n, {"n": "x" * 100}) for n in range(2000)))
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    task = asyncio.create_task(others())
    chunks = [chunk async for chunk in registry.page()]
    task.cancel()
    assert turns >= len(chunks) - 1 > 5


def test_a_histogram_adds_up() -> None:
    buckets = Buckets((1.0, 5.0))
    for value in (0.5, 1.0, 3.0, 7.0):
        buckets.add(value)
    buckets.add_many(0.1, 3)
    (family,) = text_string_to_metric_families(page(list(buckets.histogram("latency_ms", {"topic": "t"}))))
    assert family.type == "histogram"
    found = {
        sample.labels["le"]: sample.value for sample in family.samples if sample.name.endswith("_bucket")
    }
    assert found == {"1": 5, "5": 6, "+Inf": 7}
    assert buckets.quantile(0.5) == 1.0
    assert buckets.quantile(0.99) == float("inf")
    assert Buckets().quantile(0.5) == 0.0


def test_pulsars_literal_bucket_names() -> None:
    latency = Buckets()
    latency.add(0.4)
    latency.add(5000)
    lines = dict(
        line.rsplit(" ", 1)
        for line in page(list(latency.pulsar_latency("pulsar_storage_write_latency"))).splitlines()
        if not line.startswith("#")
    )
    assert lines["pulsar_storage_write_latency_le_0_5"] == "1"
    assert lines["pulsar_storage_write_latency_le_1000"] == "0"
    assert lines["pulsar_storage_write_latency_overflow"] == "1"
    sizes = Buckets(ENTRY_SIZE_BOUNDS_BYTES)
    sizes.add(3000)
    text = page(list(sizes.pulsar_entry_size("pulsar_entry_size")))
    assert "pulsar_entry_size_le_4_kb 1\n" in text
    assert "pulsar_entry_size_le_1_mb 0\n" in text


def test_a_process_knows_itself() -> None:
    found = {sample.name: sample.value for sample in process_samples()}
    assert found["process_resident_memory_bytes"] > 1_000_000
    assert found["process_open_fds"] > 2
    assert 0 < process_age_s() < 86400
    assert memory_of_tree_bytes([os.getpid(), 2**22]) > 1_000_000
