"""Questions that are asked again until a broker answers them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from magnetar.client.errors import (
    BrokerRefused,
    ClientError,
    ConnectFailed,
    ConnectionLost,
    OperationTimedOut,
)
from magnetar.client.session import Session

Answer = TypeVar("Answer")


async def until_answered(
    session: Session, ask: Callable[[], Awaitable[Answer]], *, in_time: bool = True
) -> Answer:
    """Call `ask` until it succeeds, fails for good, or the operation's time is over (unless not `in_time`).

    Raises:
        BrokerRefused: the broker answered with an error that asking again does not heal.
        ConnectFailed, OperationTimedOut: the last failure when the time was over.
    """
    timeout_s = session.settings.operation_timeout_s
    backoff = session.backoff()
    failure: ClientError | None = None
    try:
        async with asyncio.timeout(timeout_s if in_time else None):
            while True:
                await asyncio.sleep(backoff.next_delay())
                try:
                    return await ask()
                except BrokerRefused as error:
                    if not error.retriable:
                        raise
                    failure = error
                except (ConnectFailed, ConnectionLost, OperationTimedOut) as error:
                    failure = error
    except TimeoutError:
        if failure is not None and not isinstance(failure, ConnectionLost):
            raise failure from None
        raise OperationTimedOut(f"no answer within {timeout_s:g} s") from failure
