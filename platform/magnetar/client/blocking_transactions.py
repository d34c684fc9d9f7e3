"""`Transaction` without `await`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any

from magnetar.client.transactions import Transaction, TransactionState

Run = Callable[[Coroutine[Any, Any, None]], None]


class BlockingTransaction:
    """As `Transaction`; a `with` block commits at its end, or aborts by an exception that leaves it."""

    def __init__(self, run: Run, transaction: Transaction) -> None:
        self._run = run
        self.wrapped = transaction
        """The transaction itself, of the loop's thread."""

    def __str__(self) -> str:
        return str(self.wrapped)

    @property
    def state(self) -> TransactionState:
        """As `Transaction.state`."""
        return self.wrapped.state

    def commit(self) -> None:
        """As `Transaction.commit`."""
        self._run(self.wrapped.commit())

    def abort(self) -> None:
        """As `Transaction.abort`."""
        self._run(self.wrapped.abort())

    def __enter__(self) -> BlockingTransaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self.wrapped.__aexit__(kind, error, trace))


def unwrapped(transaction: BlockingTransaction | None) -> Transaction | None:
    """The transaction of the loop's thread."""
    return None if transaction is None else transaction.wrapped
