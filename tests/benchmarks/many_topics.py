"""The memory of a broker with many topics.

    python -m tests.benchmarks.many_topics [--topics 10000]

A broker over ZooKeeper and three bookies, each a process. Resident memory of the broker is taken with nothing loaded;
with every topic loaded by a producer that has stored one message; with a subscription and a consumer on each beside that;
and when all clients have gone while the topics stay. Also how many topics are loaded a second, and the processor time the
broker takes while nothing happens.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from pathlib import Path

from tests.benchmarks.failover import Brokers, platform
from tests.benchmarks.processes import cpu, memory_mb

AT_ONCE = 50
IDLE_S = 10.0
NAMESPACE = "public/default"


async def everything(brokers: Brokers, topics: list[str]) -> None:
    """Load the topics step by step, telling memory after each."""
    from magnetar.client import Client

    broker = brokers.processes[0]
    empty = memory_mb(broker.pid)
    print(f"nothing loaded: {empty:.0f} MiB", flush=True)

    def tell(what: str, seconds: float | None = None) -> None:
        now = memory_mb(broker.pid)
        each = (now - empty) * 1024 / len(topics)
        rate = f", {len(topics) / seconds:.0f} a second" if seconds else ""
        print(f"{what}: {now:.0f} MiB, {each:.1f} KiB a topic{rate}", flush=True)

    client = Client(broker.service_url)
    room = asyncio.Semaphore(AT_ONCE)

    async def produce(topic: str) -> None:
        async with room:
            producer = await client.create_producer(topic, batching=False)
            await producer.send(b"x" * 100)

    began = time.monotonic()
    await asyncio.gather(*map(produce, topics))
    tell(f"{len(topics)} topics, a producer and a message each", time.monotonic() - began)

    async def consume(topic: str) -> None:
        async with room:
            await client.subscribe(topic, "s", receiver_queue_size=1)

    began = time.monotonic()
    await asyncio.gather(*map(consume, topics))
    tell("and a subscription with a consumer each", time.monotonic() - began)
    before = cpu(broker.pid)
    await asyncio.sleep(IDLE_S)
    used = (cpu(broker.pid) - before).total
    print(f"idle: {100 * used / IDLE_S:.1f} % of a processor", flush=True)
    await client.close()
    await asyncio.sleep(3.0)
    tell("all clients gone, topics loaded")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--topics", type=int, default=10_000)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="topics-", dir=os.environ.get("TMPDIR")) as name,
        platform(Path(name), 10.0, 1000) as brokers,
    ):
        brokers.processes[1].stop()  # One broker is to have all of them.
        topics = [f"persistent://{NAMESPACE}/many-{number}" for number in range(options.topics)]
        asyncio.run(everything(brokers, topics))


if __name__ == "__main__":
    main()
