"""The clients of a soak, in a process of its own: `python -m magnetar.testing.soak_clients PLAN`.

So many connections at a time, each a client of its own with one producer or one consumer, which lives for a while, leaves,
and is followed by another. Official clients are threads, ours are tasks. Standard input ends the producers by its first
line, and the consumers by its end. A line of standard output tells when all producers have their receipts and are gone;
at the end what each client has seen is written to the plan's file as JSON:

    {"receipted": {TOPIC: {PRODUCER: [NUMBER, ...]}}, "received": {TOPIC: {SUBSCRIPTION: {PRODUCER: [NUMBER, ...]}}},
     "latencies_ms": [...], "lives": n, "troubles": {TEXT: n}}
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

LIFE_S: Final = (10.0, 90.0)
PRODUCING_SHARE: Final = 0.4
RETRY_S: Final = 1.0
RECEIVE_S: Final = 1.0
OPERATION_TIMEOUT_S: Final = 30
SUBSCRIPTION_TYPES: Final = ("exclusive", "failover", "shared", "key_shared")
"""Topic number i has one subscription of each of two types, i and i + 1 of these."""


def topic_name(number: int) -> str:
    """The soak's topics, by number."""
    return f"persistent://public/soak/topic-{number}"


def types_of(number: int) -> tuple[str, str]:
    """The types of a topic's subscriptions, which are their names, too."""
    count = len(SUBSCRIPTION_TYPES)
    return SUBSCRIPTION_TYPES[number % count], SUBSCRIPTION_TYPES[(number + 1) % count]


class Witness:
    """What the clients of this process have seen. Used from many threads, a call at a time under the lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._receipted: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        self._received: dict[str, dict[str, dict[str, list[int]]]] = defaultdict(
            lambda: defaultdict(lambda: defaultdict(list))
        )
        self._latencies_ms: list[float] = []
        self._troubles: Counter[str] = Counter()
        self._lives = 0

    def born(self) -> int:
        """A number for a new client."""
        with self._lock:
            self._lives += 1
            return self._lives

    def receipted(self, topic: str, producer: str, number: int, seconds: float) -> None:
        with self._lock:
            self._receipted[topic][producer].append(number)
            self._latencies_ms.append(round(seconds * 1000, 2))

    def received(self, topic: str, subscription: str, payload: bytes) -> None:
        producer, _, number = payload.decode().rpartition(":")
        with self._lock:
            self._received[topic][subscription][producer].append(int(number))

    def trouble(self, error: Exception) -> None:
        """Clients meet errors while the broker is away; they try again."""
        with self._lock:
            self._troubles[f"{type(error).__name__}: {str(error)[:80]}"] += 1

    def write(self, path: Path) -> None:
        with self._lock:
            told = {
                "receipted": self._receipted,
                "received": self._received,
                "latencies_ms": self._latencies_ms,
                "lives": self._lives,
                "troubles": self._troubles,
            }
            path.write_text(json.dumps(told))


class Ends:
    """When producers, and when consumers, are to leave for good."""

    def __init__(self) -> None:
        self.producers = threading.Event()
        self.consumers = threading.Event()

    def listen(self) -> None:
        """Standard input: one line, then its end."""
        sys.stdin.readline()
        self.producers.set()
        sys.stdin.read()
        self.producers.set()
        self.consumers.set()


class OurClients:
    """`count` clients of `magnetar.client` on one event loop."""

    def __init__(self, plan: dict[str, Any], witness: Witness, ends: Ends) -> None:
        self._plan = plan
        self._witness = witness
        self._ends = ends
        self._dice = random.Random(plan["seed"])

    async def run(self) -> None:
        count = self._plan["connections"]
        producing = round(count * PRODUCING_SHARE)
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._again_and_again(self._dice.random(), producing=number < producing))
                for number in range(count)
            ]
            await asyncio.gather(*tasks[:producing])
            tell_producers_gone()

    async def _again_and_again(self, delay_s: float, *, producing: bool) -> None:
        await asyncio.sleep(delay_s * 10)
        end = self._ends.producers if producing else self._ends.consumers
        while not end.is_set():
            life: Coroutine[Any, Any, None] = self._produce(end) if producing else self._consume(end)
            try:
                await life
            except Exception as error:  # Whatever it is, the next life begins; errors are counted and told.
                self._witness.trouble(error)
                await asyncio.sleep(RETRY_S)

    def _client(self) -> Any:
        from magnetar.client import Client

        return Client(self._plan["url"], operation_timeout_s=OPERATION_TIMEOUT_S, backoff_maximum_s=5.0)

    async def _produce(self, end: threading.Event) -> None:
        topic = topic_name(self._dice.randrange(self._plan["topics"]))
        name = f"{self._plan['name']}-{self._witness.born()}"
        until = time.monotonic() + self._dice.uniform(*LIFE_S)
        client = self._client()
        try:
            producer = await client.create_producer(topic, producer_name=name, send_timeout_s=0)
            number = 0
            while time.monotonic() < until and not end.is_set():
                began = time.perf_counter()
                await producer.send(f"{name}:{number}".encode(), key=f"key-{number % 7}")
                self._witness.receipted(topic, name, number, time.perf_counter() - began)
                number += 1
                await asyncio.sleep(self._plan["gap_s"])
        finally:
            await client.close()

    async def _consume(self, end: threading.Event) -> None:
        number = self._dice.randrange(self._plan["topics"])
        kind = self._dice.choice(types_of(number))
        topic = topic_name(number)
        self._witness.born()
        until = time.monotonic() + self._dice.uniform(*LIFE_S)
        client = self._client()
        try:
            consumer = await client.subscribe(
                topic, kind, type=kind, initial="earliest", receiver_queue_size=100
            )
            while time.monotonic() < until and not end.is_set():
                message = await consumer.receive(timeout_s=RECEIVE_S)
                if message is not None:
                    self._witness.received(topic, kind, bytes(message.data))
                    consumer.acknowledge(message)
            await consumer.flush_acknowledgements()
        finally:
            await client.close()


class OfficialClients:
    """`connections` official clients, a thread each."""

    def __init__(self, plan: dict[str, Any], witness: Witness, ends: Ends) -> None:
        self._failed: Exception | None = None
        self._plan = plan
        self._witness = witness
        self._ends = ends
        self._dice = random.Random(plan["seed"])

    def run(self) -> None:
        count = self._plan["connections"]
        producing = round(count * PRODUCING_SHARE)
        threads = [
            threading.Thread(target=self._again_and_again, args=(self._dice.random(), number < producing))
            for number in range(count)
        ]
        for thread in threads:
            thread.start()
        for thread in threads[:producing]:
            thread.join()
        tell_producers_gone()
        for thread in threads[producing:]:
            thread.join()
        if self._failed is not None:
            raise self._failed

    def _again_and_again(self, delay_s: float, producing: bool) -> None:
        import pulsar

        end = self._ends.producers if producing else self._ends.consumers
        end.wait(delay_s * 10)
        while not end.is_set():
            client = None
            try:
                client = pulsar.Client(
                    self._plan["url"],
                    io_threads=1,
                    message_listener_threads=1,
                    operation_timeout_seconds=OPERATION_TIMEOUT_S,
                    logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
                )
                if producing:
                    self._produce(client, end)
                else:
                    self._consume(client, end)
            except pulsar.PulsarException as error:
                self._witness.trouble(error)
                end.wait(RETRY_S)
            except Exception as error:
                self._failed = error  # A fault of this program: the run proves nothing then.
                raise
            finally:
                if client is not None:
                    self._close(client)

    def _close(self, client: Any) -> None:
        import pulsar

        try:
            client.close()
        except pulsar.PulsarException as error:
            self._witness.trouble(error)

    def _produce(self, client: Any, end: threading.Event) -> None:
        topic = topic_name(self._dice.randrange(self._plan["topics"]))
        name = f"{self._plan['name']}-{self._witness.born()}"
        until = time.monotonic() + self._dice.uniform(*LIFE_S)
        producer = client.create_producer(
            topic, producer_name=name, send_timeout_millis=0, batching_enabled=False
        )
        number = 0
        while time.monotonic() < until and not end.is_set():
            began = time.perf_counter()
            producer.send(f"{name}:{number}".encode(), partition_key=f"key-{number % 7}")
            self._witness.receipted(topic, name, number, time.perf_counter() - began)
            number += 1
            end.wait(self._plan["gap_s"])

    def _consume(self, client: Any, end: threading.Event) -> None:
        import pulsar

        number = self._dice.randrange(self._plan["topics"])
        kind = self._dice.choice(types_of(number))
        types = dict(
            zip(
                SUBSCRIPTION_TYPES,
                (
                    pulsar.ConsumerType.Exclusive,
                    pulsar.ConsumerType.Failover,
                    pulsar.ConsumerType.Shared,
                    pulsar.ConsumerType.KeyShared,
                ),
                strict=True,
            )
        )
        topic = topic_name(number)
        self._witness.born()
        until = time.monotonic() + self._dice.uniform(*LIFE_S)
        consumer = client.subscribe(topic, kind, consumer_type=types[kind], receiver_queue_size=100)
        while time.monotonic() < until and not end.is_set():
            try:
                message = consumer.receive(timeout_millis=round(RECEIVE_S * 1000))
            except pulsar.Timeout:
                continue
            self._witness.received(topic, kind, message.data())
            consumer.acknowledge(message)


def tell_producers_gone() -> None:
    """To whoever waits for it before it looks whether everything has been delivered."""
    sys.stdout.write("producers are gone\n")
    sys.stdout.flush()


def main() -> None:
    """Run the clients of a plan."""
    plan = json.loads(sys.argv[1])
    witness, ends = Witness(), Ends()
    threading.Thread(target=ends.listen, daemon=True).start()
    if plan["official"]:
        OfficialClients(plan, witness, ends).run()
    else:
        asyncio.run(OurClients(plan, witness, ends).run())
    witness.write(Path(plan["seen"]))


if __name__ == "__main__":
    main()
