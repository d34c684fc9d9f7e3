"""How a transaction of the client ends where its program changes its mind."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from magnetar.client.coordinators import CoordinatorClient
from magnetar.client.errors import TransactionEnded
from magnetar.client.transactions import Transaction, TransactionState
from magnetar.protocol.ids import MessageId


class Coordinators:
    """Takes every end, and remembers it."""

    def __init__(self) -> None:
        self.ends: list[bool] = []

    async def end(self, most: int, least: int, *, commit: bool) -> None:
        self.ends.append(commit)


async def test_a_commit_that_is_waited_for_no_longer_can_be_taken_back() -> None:
    coordinators = Coordinators()
    transaction = Transaction(cast(CoordinatorClient, coordinators), 0, 1)
    sent: asyncio.Future[MessageId] = asyncio.get_running_loop().create_future()
    transaction.track(sent)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(transaction.commit(), 0.01)
    with pytest.raises(TransactionEnded):
        transaction.check_open()
    sent.set_result(MessageId(1, 1))
    await transaction.abort()
    assert coordinators.ends == [False]
    assert transaction.state is TransactionState.ABORTED


async def test_a_block_left_by_such_a_commit_aborts() -> None:
    coordinators = Coordinators()
    sent: asyncio.Future[MessageId] = asyncio.get_running_loop().create_future()

    async def block() -> None:
        async with Transaction(cast(CoordinatorClient, coordinators), 0, 1) as transaction:
            transaction.track(sent)
            asyncio.get_running_loop().call_later(0.05, sent.set_result, MessageId(1, 1))
            await asyncio.wait_for(transaction.commit(), 0.01)

    with pytest.raises(TimeoutError):
        await block()
    assert coordinators.ends == [False]
