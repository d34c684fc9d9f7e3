"""Compaction over HTTP, and what a client that reads compacted is given."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.client.client import Client
from magnetar.protocol.ids import EARLIEST
from tests.unit.admin.conftest import Platform

BASE = "/admin/v2/persistent/public/default"


async def compact(platform: Platform, topic: str) -> None:
    answer = await platform.http.put(f"{BASE}/{topic}/compaction")
    assert answer.status_code in (204, 409), answer.text
    await asyncio.wait_for(platform.broker.context.tasks.drain(), 10)
    assert await status(platform, topic) == {"status": "SUCCESS", "lastError": ""}


async def status(platform: Platform, topic: str) -> dict[str, str]:
    answer: dict[str, str] = (await platform.http.get(f"{BASE}/{topic}/compaction")).json()
    return answer


async def say(platform: Platform, topic: str, said: dict[str, bytes | None], *, batching: bool) -> None:
    async with Client(platform.broker.service_url) as client:
        producer = await client.create_producer(topic, batching=batching)
        await asyncio.gather(*(producer.send(value, key=key) for key, value in said.items()))
        await producer.close()


async def read_all(platform: Platform, topic: str, *, read_compacted: bool = True) -> list[tuple[str, bytes]]:
    async with Client(platform.broker.service_url) as client:
        reader = await client.create_reader(topic, EARLIEST, read_compacted=read_compacted)
        found = []
        while await reader.has_message_available():
            message = await reader.read(5)
            assert message is not None
            found.append((str(message.key), message.data))
        return found


@pytest.mark.parametrize("batching", [False, True])
async def test_a_compacted_topic_is_read_by_its_last_values(platform: Platform, batching: bool) -> None:
    await platform.http.put(f"{BASE}/t")
    await platform.http.put(f"{BASE}/t/subscription/s", json={"ledgerId": -1, "entryId": -1})
    assert await status(platform, "t") == {"status": "NOT_RUN", "lastError": ""}
    for number in range(3):
        await say(platform, "t", {f"k{each}": b"%d" % number for each in range(4)}, batching=batching)
    await say(platform, "t", {"k1": None, "k9": b"new"}, batching=batching)
    await compact(platform, "t")
    assert await read_all(platform, "t") == [("k0", b"2"), ("k2", b"2"), ("k3", b"2"), ("k9", b"new")]
    assert len(await read_all(platform, "t", read_compacted=False)) == 14
    await say(platform, "t", {"k0": None}, batching=batching)
    assert len(await read_all(platform, "t")) == 5
    await compact(platform, "t")
    assert await read_all(platform, "t") == [("k2", b"2"), ("k3", b"2"), ("k9", b"new")]
    told = (await platform.http.get(f"{BASE}/t/stats")).json()["compaction"]
    assert told["lastCompactionRemovedEventCount"] == 2
    assert told["lastCompactionSucceedTimestamp"] > 0
    inside = (await platform.http.get(f"{BASE}/t/internalStats")).json()
    assert inside["compactedLedger"]["entries"] >= 2
    assert "__compaction" in inside["cursors"]


async def test_a_threshold_starts_it(platform: Platform) -> None:
    await platform.http.put(f"{BASE}/t")
    answer = await platform.http.post(f"{BASE}/t/compactionThreshold", json=300)
    assert answer.status_code == 204
    assert "x-magnetar-policy" not in answer.headers
    topic = platform.broker.topics.loaded()[0]
    await asyncio.wait_for(platform.broker.context.tasks.drain(), 10)
    assert topic.policies.compaction_threshold_bytes == 300
    await say(platform, "t", {"k": b"x" * 100}, batching=False)
    topic.tick(1.0)
    assert (await status(platform, "t"))["status"] == "NOT_RUN"
    for _ in range(3):
        await say(platform, "t", {"k": b"x" * 100}, batching=False)
    topic.tick(1.0)
    assert (await status(platform, "t"))["status"] in ("RUNNING", "SUCCESS")
    await asyncio.wait_for(platform.broker.context.tasks.drain(), 10)
    assert (await status(platform, "t"))["status"] == "SUCCESS"
    assert await read_all(platform, "t") == [("k", b"x" * 100)]


async def test_partitions_are_compacted_each_and_told_together(platform: Platform) -> None:
    await platform.http.put(f"{BASE}/p/partitions", json=2)
    await say(platform, "p-partition-0", {"k": b"1"}, batching=False)
    await compact(platform, "p")
    assert (await platform.http.put("/admin/v2/non-persistent/public/default/x/compaction")).status_code in (
        404,
        405,
    )
    assert (await platform.http.put(f"{BASE}/none/compaction")).status_code == 404


async def test_a_durable_subscription_begins_in_what_the_log_has_let_go(platform: Platform) -> None:
    """And after acknowledging all of it, it never comes again."""
    await platform.http.put(f"{BASE}/t")
    await platform.http.put(f"{BASE}/t/subscription/s", json={"ledgerId": -1, "entryId": -1})
    for number in range(2):
        await say(platform, "t", {f"k{each}": b"%d" % number for each in range(5)}, batching=False)
    await compact(platform, "t")
    await platform.http.delete(f"{BASE}/t/subscription/s")
    await say(platform, "t", {"k0": b"lost"}, batching=False)
    await platform.http.delete(f"{BASE}/t/truncate")
    assert (await platform.http.get(f"{BASE}/t/stats")).json()["storageSize"] == 0

    async def consume(limit: int, acknowledge: int, reload: bool) -> list[bytes]:
        async with Client(platform.broker.service_url) as client:
            consumer = await client.subscribe("t", "d", initial="earliest", read_compacted=True)
            found = []
            for _ in range(limit):
                message = await consumer.receive(0.5)
                if message is None:
                    break
                found.append(message.data)
                if len(found) <= acknowledge:
                    consumer.acknowledge(message)
            await consumer.flush_acknowledgements()
        if reload:
            topic = platform.broker.topics.loaded()[0]
            topic.tick(1.0)
            await platform.broker.context.tasks.drain()
            await platform.http.put(f"{BASE}/t/unload")
        return found

    assert len(await consume(9, 2, False)) == 5
    assert len(await consume(9, 1, True)) == 3
    assert len(await consume(9, 2, True)) == 2
    assert await consume(9, 0, False) == []
    await say(platform, "t", {"new": b"n"}, batching=False)
    assert await consume(9, 1, False) == [b"n"]
