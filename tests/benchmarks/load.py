"""Load generators, each run in a process of its own so that its processor time can be told from the server's.

    python -m tests.benchmarks.load official produce URL TOPIC SIZE SECONDS
    python -m tests.benchmarks.load ours consume URL TOPIC COUNT
    python -m tests.benchmarks.load ours latency URL TOPIC SIZE COUNT      one in flight
    python -m tests.benchmarks.load ours paced URL TOPIC SIZE COUNT       PACED_RATE a second, timed from when each was due

prints one JSON object: messages, seconds, cpu_seconds, and for a consumer the payloads' checksum.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
import zlib
from typing import Any

WINDOW = 1000
PACED_RATE = 250
LATENCY_WARM_UP = 50
CONSUMER_TIMEOUT_S = 60.0


def main(arguments: list[str]) -> None:
    """Run one generator."""
    client, action, url, topic, *rest = arguments
    if action == "produce":
        size, seconds = int(rest[0]), float(rest[1])
        result = (
            official_produce(url, topic, size, seconds)
            if client == "official"
            else asyncio.run(our_produce(url, topic, size, seconds))
        )
    elif action == "consume":
        count = int(rest[0])
        result = (
            official_consume(url, topic, count)
            if client == "official"
            else asyncio.run(our_consume(url, topic, count))
        )
    else:
        size, count, gap = int(rest[0]), int(rest[1]), 1 / PACED_RATE if action == "paced" else 0.0
        result = (
            official_latency(url, topic, size, count, gap)
            if client == "official"
            else asyncio.run(our_latency(url, topic, size, count, gap))
        )
    print(json.dumps(result))


def official_produce(url: str, topic: str, size: int, seconds: float) -> dict[str, Any]:
    """`send_async` with a callback a message, batching on, at most WINDOW × 10 unconfirmed."""
    import pulsar

    client = pulsar.Client(url, io_threads=1, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_publish_delay_ms=1,
        block_if_queue_full=True,
        max_pending_messages=10 * WINDOW,
    )
    confirmed, sent, failures = 0, 0, 0
    payload = b"x" * size
    done = threading.Event()

    def confirm(result: Any, _id: Any) -> None:
        nonlocal confirmed, failures
        confirmed += 1
        failures += result != pulsar.Result.Ok
        if done.is_set() and confirmed == sent:
            finished.set()

    finished = threading.Event()
    began, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds:
        for _ in range(100):
            producer.send_async(payload, confirm)
        sent += 100
    done.set()
    producer.flush()
    if confirmed < sent:
        finished.wait(30)
    elapsed = time.perf_counter() - began
    used = time.process_time() - cpu
    client.close()
    if failures or confirmed != sent:
        raise SystemExit(f"{failures} sends failed, {confirmed} of {sent} confirmed")
    return {"messages": confirmed, "seconds": elapsed, "cpu_seconds": used}


def official_consume(url: str, topic: str, count: int) -> dict[str, Any]:
    """Receive and acknowledge each."""
    import pulsar

    client = pulsar.Client(url, io_threads=1, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = client.subscribe(
        topic,
        f"official-{time.time_ns()}",
        initial_position=pulsar.InitialPosition.Earliest,
        receiver_queue_size=5000,
    )
    began, cpu = time.perf_counter(), time.process_time()
    checksum = 0
    for _ in range(count):
        message = consumer.receive(timeout_millis=int(CONSUMER_TIMEOUT_S * 1000))
        consumer.acknowledge(message)
        checksum = zlib.crc32(message.data(), checksum)
    elapsed, used = time.perf_counter() - began, time.process_time() - cpu
    client.close()
    return {"messages": count, "seconds": elapsed, "cpu_seconds": used, "checksum": checksum}


def official_latency(url: str, topic: str, size: int, count: int, gap: float) -> dict[str, Any]:
    """Seconds until each receipt: one in flight, or one due every `gap` seconds and timed from then."""
    import pulsar

    client = pulsar.Client(url, io_threads=1, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(topic, batching_enabled=False)
    payload = b"x" * size
    for _ in range(LATENCY_WARM_UP):
        producer.send(payload)
    times = []
    cpu, due = time.process_time(), time.perf_counter()
    for _ in range(count):
        due = _wait_for(due, gap)
        producer.send(payload)
        times.append(time.perf_counter() - due)
    used = time.process_time() - cpu
    client.close()
    return {"messages": count, "seconds": sum(times), "cpu_seconds": used, "times": times}


async def our_latency(url: str, topic: str, size: int, count: int, gap: float) -> dict[str, Any]:
    """As `official_latency`."""
    from magnetar.client import Client

    client = Client(url)
    producer = await client.create_producer(topic, batching=False)
    payload = b"x" * size
    for _ in range(LATENCY_WARM_UP):
        await producer.send(payload)
    times = []
    cpu, due = time.process_time(), time.perf_counter()
    for _ in range(count):
        due = _wait_for(due, gap)
        await producer.send(payload)
        times.append(time.perf_counter() - due)
    used = time.process_time() - cpu
    await client.close()
    return {"messages": count, "seconds": sum(times), "cpu_seconds": used, "times": times}


def _wait_for(due: float, gap: float) -> float:
    """When the next message is due; waits until then. Nothing else runs here meanwhile: nothing is in flight."""
    now = time.perf_counter()
    if not gap:
        return now
    due += gap
    if due > now:
        time.sleep(due - now)
    return due


async def our_produce(url: str, topic: str, size: int, seconds: float) -> dict[str, Any]:
    """`send_nowait`, one future a message, at most WINDOW × 10 unconfirmed."""
    from magnetar.client import Client

    client = Client(url)
    producer = await client.create_producer(
        topic, batching_max_delay_ms=1.0, max_pending_messages=20 * WINDOW
    )
    payload = b"x" * size
    confirmed = 0
    began, cpu = time.perf_counter(), time.process_time()
    pending: list[asyncio.Future[Any]] = []
    while time.perf_counter() - began < seconds:
        fresh = [producer.send_nowait(payload) for _ in range(5 * WINDOW)]
        for future in pending:
            await future
            confirmed += 1
        pending = fresh
    for future in pending:
        await future
        confirmed += 1
    elapsed, used = time.perf_counter() - began, time.process_time() - cpu
    await client.close()
    return {"messages": confirmed, "seconds": elapsed, "cpu_seconds": used}


async def our_consume(url: str, topic: str, count: int) -> dict[str, Any]:
    """Whole batches in, each acknowledged."""
    from magnetar.client import Client

    client = Client(url)
    consumer = await client.subscribe(
        topic, f"ours-{time.time_ns()}", initial="earliest", receiver_queue_size=20_000
    )
    began, cpu = time.perf_counter(), time.process_time()
    checksum, received = 0, 0
    while received < count:
        batch = await consumer.receive_batch(timeout_s=CONSUMER_TIMEOUT_S)
        if batch is None:
            raise SystemExit(f"only {received} of {count} messages came")
        for message in batch.messages:
            checksum = zlib.crc32(message.data, checksum)
            received += 1
        consumer.acknowledge(batch)
    elapsed, used = time.perf_counter() - began, time.process_time() - cpu
    await client.close()
    return {"messages": received, "seconds": elapsed, "cpu_seconds": used, "checksum": checksum}


if __name__ == "__main__":
    main(sys.argv[1:])
