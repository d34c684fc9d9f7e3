"""Exactly once through a death at every named place: a worker moves messages from one topic to two others.

A standalone platform is killed at a crash point in the middle of transactions and started again, while the worker goes
on. In the end each message is in both topics, once, and none is left to be done.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from magnetar.client import Client
from magnetar.client.consumer import Consumer
from magnetar.client.errors import ClientError, TransactionEnded, TransactionFailed
from magnetar.client.messages import Message
from magnetar.client.producer import Producer
from magnetar.client.transactions import Transaction, TransactionState
from magnetar.testing.processes import MagnetarProcess, free_port

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

MESSAGES = 8
DEADLINE_S = 90.0
PLACES = (
    "transaction_buffer.made",
    "transaction_buffer.before_marker:4",
    "transaction_buffer.marked:4",
    "transaction_buffer.saved:3",
    "pending_acks.before_hold:3",
    "pending_acks.held:3",
    "pending_acks.before_end:3",
    "pending_acks.ended:3",
    "coordinator.before_decision:3",
    "coordinator.decided:3",
    "coordinator.before_telling:8",
    "coordinator.told:3",
    "coordinator.finished:3",
    "record_log.snapshot_stored:2",
    "record_log.snapshot_taken:2",
)
SETTINGS = {
    "MAGNETAR_BROKER__TRANSACTION_COORDINATORS": "2",
    "MAGNETAR_BROKER__TRANSACTION_LOG_SNAPSHOT_RECORDS": "5",
    "MAGNETAR_BROKER__TRANSACTION_BUFFER_SNAPSHOT_ENTRIES": "3",
    "MAGNETAR_BROKER__HOUSEKEEPING_INTERVAL_S": "0.1",
    "MAGNETAR_POLICIES__DEDUPLICATION_ENABLED": "true",  # A message that is sent again after the death counts once.
}


async def start_again_when_it_dies(process: MagnetarProcess, died: asyncio.Event) -> None:
    await asyncio.to_thread(process.wait, DEADLINE_S)
    died.set()
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


async def work(client: Client, source: Consumer, targets: list[Producer]) -> None:
    """Move messages, one in a transaction; every third transaction is aborted, and its message comes again."""
    done: set[bytes] = set()
    turn = 0
    while len(done) < MESSAGES:
        message = await source.receive(DEADLINE_S)
        assert message is not None
        assert message.data not in done, "what was committed came again"
        turn += 1
        txn = await client.begin_transaction(timeout_s=60)
        commit = turn % 3 != 2
        if not await moved(message, txn, source, targets):
            commit = False
        if await ended(txn, commit=commit):
            done.add(message.data)


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
    while (message := await consumer.receive(0.5 if len(found) >= MESSAGES else 20)) is not None:
        found.append(message.data)
    await consumer.close()
    return found


@pytest.mark.parametrize("place", PLACES)
async def test_each_message_is_moved_once_through_a_death(tmp_path: Path, place: str) -> None:
    environment = {
        **SETTINGS,
        "MAGNETAR_CRASH_POINT": place,
        "MAGNETAR_CRASH_ONCE": str(tmp_path / "died"),
    }
    process = MagnetarProcess.standalone(
        tmp_path,
        port=free_port(),
        web_port=free_port(),
        arguments=("--no-functions",),
        environment=environment,
    )
    with process:
        died = asyncio.Event()
        watching = asyncio.create_task(start_again_when_it_dies(process, died))
        client = Client(process.service_url, operation_timeout_s=DEADLINE_S, backoff_maximum_s=0.2)
        async with client, asyncio.timeout(DEADLINE_S):
            source = await client.subscribe("in", "worker", type="shared", negative_ack_delay_s=0.1)
            first = await client.create_producer("in", producer_name="in")
            for number in range(MESSAGES):
                await first.send(b"%d" % number)
            targets = [
                await client.create_producer(name, producer_name=f"to-{name}", send_timeout_s=DEADLINE_S)
                for name in ("left", "right")
            ]
            await work(client, source, targets)
            assert died.is_set(), process.log_tail()
            wanted = sorted(b"%d" % number for number in range(MESSAGES))
            assert sorted(await all_of(client, "left")) == wanted
            assert sorted(await all_of(client, "right")) == wanted
            assert await source.receive(0.5) is None
        await watching
