"""Exactly once through a death at every named place: a worker moves messages from one topic to two others.

A standalone platform is killed at a crash point in the middle of transactions and started again, while the worker goes
on. In the end each message is in both topics, once, and none is left to be done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import pytest

from magnetar.client import Client
from magnetar.client.consumer import Consumer
from magnetar.client.errors import ClientError, TransactionEnded, TransactionFailed
from magnetar.client.messages import Message
from magnetar.client.producer import Producer
from magnetar.client.transactions import Transaction, TransactionState
from magnetar.testing.processes import MagnetarProcess, free_port

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

Over: TypeAlias = Callable[[], bool]

DEADLINE_S = 150.0
PLACES = {
    "buffers": (
        "transaction_buffer.made",
        "transaction_buffer.before_marker:4",
        "transaction_buffer.marked:4",
        "transaction_buffer.saved:3",
    ),
    "acknowledgements": (
        "pending_acks.before_hold:2",
        "pending_acks.held:2",
        "pending_acks.before_end:2",
        "pending_acks.ended:2",
    ),
    "coordinators": (
        "coordinator.before_decision:2",
        "coordinator.decided:2",
        "coordinator.before_telling:5",
        "coordinator.told:2",
        "coordinator.finished:2",
    ),
    "logs": ("record_log.snapshot_stored:2", "record_log.snapshot_taken:2"),
}
SETTINGS = {
    "MAGNETAR_BROKER__TRANSACTION_COORDINATORS": "2",
    "MAGNETAR_BROKER__TRANSACTION_LOG_SNAPSHOT_RECORDS": "5",
    "MAGNETAR_BROKER__TRANSACTION_BUFFER_SNAPSHOT_ENTRIES": "3",
    "MAGNETAR_BROKER__HOUSEKEEPING_INTERVAL_S": "0.1",
    "MAGNETAR_POLICIES__DEDUPLICATION_ENABLED": "true",  # A message that is sent again after the death counts once.
}


async def die_at_each(process: MagnetarProcess, places: Sequence[str]) -> None:
    """Start it again whenever it has died, to die at the next place; in the end to live."""
    for following in (*places[1:], ""):
        await asyncio.to_thread(process.wait, DEADLINE_S)
        process.environment["MAGNETAR_CRASH_POINT"] = following
        await asyncio.to_thread(process.start)


async def ended(txn: Transaction, *, commit: bool) -> bool:
    """End a transaction, asking until there is an answer. Returns whether it is committed."""
    while True:
        try:
            await (txn.commit() if commit else txn.abort())
            return commit
        except TransactionFailed:
            return False
        except TransactionEnded:
            return txn.state is TransactionState.COMMITTED
        except ClientError:
            assert txn.state is TransactionState.UNKNOWN
            commit = commit and txn.state is TransactionState.UNKNOWN


async def work(
    client: Client, source: Consumer, feed: Producer, targets: list[Producer], over: Over
) -> set[bytes]:
    """Move messages, one in a transaction, until it is over; every third transaction is aborted, and its message comes
    again. Returns what was moved."""
    done: set[bytes] = set()
    sent = turn = 0
    while len(done) < sent or not over():
        if len(done) == sent:
            await feed.send(b"%d" % sent)
            sent += 1
        message = await source.receive(DEADLINE_S)
        assert message is not None
        assert message.data not in done, "what was committed came again"
        turn += 1
        txn = await client.begin_transaction(timeout_s=60)
        commit = await moved(message, txn, source, targets) and turn % 3 != 2
        if await ended(txn, commit=commit):
            done.add(message.data)
    return done


async def moved(message: Message, txn: Transaction, source: Consumer, targets: list[Producer]) -> bool:
    try:
        await asyncio.gather(
            *(target.send(message.data, transaction=txn) for target in targets),
            source.acknowledge(message, transaction=txn),
        )
    except ClientError:
        return False
    return True


async def all_of(client: Client, topic: str) -> list[bytes]:
    consumer = await client.subscribe(topic, "checker", initial="earliest")
    found: list[bytes] = []
    while (message := await consumer.receive(1.0 if found else 20)) is not None:
        found.append(message.data)
    await consumer.close()
    return sorted(found)


@pytest.mark.parametrize("kind", PLACES)
async def test_each_message_is_moved_once_through_deaths(tmp_path: Path, kind: str) -> None:
    process = MagnetarProcess.standalone(
        tmp_path,
        port=free_port(),
        web_port=free_port(),
        arguments=("--no-functions",),
        environment={**SETTINGS, "MAGNETAR_CRASH_POINT": PLACES[kind][0]},
    )
    with process:
        dying = asyncio.create_task(die_at_each(process, PLACES[kind]))
        client = Client(process.service_url, operation_timeout_s=DEADLINE_S, backoff_maximum_s=0.2)
        async with client, asyncio.timeout(DEADLINE_S):
            source = await client.subscribe("in", "worker", type="shared", negative_ack_delay_s=0.1)
            feed, *targets = [
                await client.create_producer(name, producer_name=f"to-{name}", send_timeout_s=DEADLINE_S)
                for name in ("in", "left", "right")
            ]
            moved_once = sorted(await work(client, source, feed, targets, dying.done))
            await dying
            assert await all_of(client, "left") == moved_once
            assert await all_of(client, "right") == moved_once
            assert await source.receive(0.5) is None
