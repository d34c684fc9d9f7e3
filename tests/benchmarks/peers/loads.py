"""Load for the peers that are not Pulsar, in a process of its own as `tests.benchmarks.load` is.

    PYTHON -m tests.benchmarks.peers.loads redis produce PORT SIZE SECONDS
    PYTHON -m tests.benchmarks.peers.loads redis latency PORT SIZE COUNT
    PYTHON -m tests.benchmarks.peers.loads rabbitmq produce PORT SIZE SECONDS

PYTHON has what `requirements.txt` beside this names. Every message is confirmed and counted; prints one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

HOST = "127.0.0.1"
WINDOW = 1000
WARM_UP = 50


def main(arguments: list[str]) -> None:
    """Run one generator."""
    peer, action, port, size, rest = arguments
    if peer == "redis" and action == "produce":
        result = redis_produce(int(port), int(size), float(rest))
    elif peer == "redis":
        result = redis_latency(int(port), int(size), int(rest))
    else:
        result = asyncio.run(rabbitmq_produce(int(port), int(size), float(rest)))
    print(json.dumps(result))


def redis_produce(port: int, size: int, seconds: float) -> dict[str, Any]:
    """XADD, 1,000 in a pipeline, each reply an id."""
    import redis

    client = redis.Redis(HOST, port)
    payload = b"x" * size
    stream = f"bench-{time.time_ns()}"
    confirmed = 0
    began, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds:
        pipeline = client.pipeline(transaction=False)
        for _ in range(WINDOW):
            pipeline.execute_command("XADD", stream, "*", "d", payload)
        confirmed += len(pipeline.execute())
    elapsed, used = time.perf_counter() - began, time.process_time() - cpu
    stored = client.xlen(stream)
    client.delete(stream)  # Else what the next round writes comes on top of this in its memory.
    if stored != confirmed:
        raise SystemExit(f"Redis confirmed {confirmed} and holds {stored}")
    return {"messages": confirmed, "seconds": elapsed, "cpu_seconds": used}


def redis_latency(port: int, size: int, count: int) -> dict[str, Any]:
    """One XADD in flight."""
    import redis

    client = redis.Redis(HOST, port)
    payload = b"x" * size
    stream = f"bench-{time.time_ns()}"
    times = []
    for turn in range(WARM_UP + count):
        began = time.perf_counter()
        client.execute_command("XADD", stream, "*", "d", payload)
        if turn >= WARM_UP:
            times.append(time.perf_counter() - began)
    client.delete(stream)
    return {"messages": count, "seconds": sum(times), "cpu_seconds": 0.0, "times": times}


async def rabbitmq_produce(port: int, size: int, seconds: float) -> dict[str, Any]:
    """`send_batch` of 1,000, at most ten of them unconfirmed."""
    import rstream

    stream = f"bench-{time.time_ns()}"
    confirmed = sent = 0
    room = asyncio.Event()
    unconfirmed_max = 10 * WINDOW

    def confirm(status: rstream.ConfirmationStatus) -> None:
        nonlocal confirmed
        if not status.is_confirmed:
            raise SystemExit(f"RabbitMQ did not confirm: {status.response_code}")
        confirmed += 1
        if sent - confirmed < unconfirmed_max:
            room.set()

    async with rstream.Producer(HOST, port, username="guest", password="guest") as producer:
        await producer.create_stream(stream)
        batch = [b"x" * size] * WINDOW
        began, cpu = time.perf_counter(), time.process_time()
        while time.perf_counter() - began < seconds:
            room.clear()
            sent += WINDOW
            await producer.send_batch(stream, batch, on_publish_confirm=confirm)
            if sent - confirmed >= unconfirmed_max:
                await asyncio.wait_for(room.wait(), 30)
        unconfirmed_max = 1
        while confirmed < sent:
            room.clear()
            if sent - confirmed:
                await asyncio.wait_for(room.wait(), 30)
        elapsed, used = time.perf_counter() - began, time.process_time() - cpu
        await producer.delete_stream(stream)
    return {"messages": confirmed, "seconds": elapsed, "cpu_seconds": used}


if __name__ == "__main__":
    main(sys.argv[1:])
