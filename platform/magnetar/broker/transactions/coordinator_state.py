"""What a coordinator knows of its transactions, and what it writes down of it. Pure.

Every change is a record, made by a method here and put into the log by the shell; `apply` makes the same change of
a record that is read again. Memory leads: a method changes the state at once, and whoever asked is answered when
the record is stored. If it cannot be, the shell throws the state away and reads the log anew.

A transaction is OPEN, then COMMITTING or ABORTING once that is decided, and COMMITTED or ABORTED when all its
participants know; then only its outcome is remembered, for a while. Source: Pulsar TxnMeta, TxnStatus.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from heapq import heappop, heappush
from typing import Any, Final, TypeAlias

from magnetar.broker.errors import InvalidTransactionStatus, TransactionNotFound
from magnetar.broker.transactions.txn_id import TxnId

FORMAT: Final = 1
OUTCOMES_MAX: Final = 10_000
"""How many ended transactions' outcomes are remembered: a client whose answer was lost asks again."""
_PER_RECORD: Final = 500

Record: TypeAlias = dict[str, Any]


class Status(Enum):
    """Named as Pulsar's TxnStatus."""

    OPEN = "OPEN"
    COMMITTING = "COMMITTING"
    COMMITTED = "COMMITTED"
    ABORTING = "ABORTING"
    ABORTED = "ABORTED"

    @property
    def committed(self) -> bool:
        """Whether it is, or will be, committed."""
        return self in (Status.COMMITTING, Status.COMMITTED)


@dataclass(slots=True)
class Transaction:
    """One that is open, or whose end is being carried out."""

    txn: TxnId
    opened_ms: int
    timeout_ms: int
    status: Status = Status.OPEN
    owner: str | None = None
    """The role that began it; None: anonymous."""
    partitions: dict[str, None] = field(default_factory=dict)
    """The topics it writes to."""
    subscriptions: dict[tuple[str, str], None] = field(default_factory=dict)
    """Topic and name of the subscriptions it acknowledges for."""
    timed_out: bool = False

    @property
    def deadline_ms(self) -> int:
        return self.opened_ms + self.timeout_ms

    def encode(self) -> Record:
        return {
            "id": self.txn.least,
            "opened": self.opened_ms,
            "timeout": self.timeout_ms,
            "status": self.status.value,
            "owner": self.owner,
            "partitions": list(self.partitions),
            "subscriptions": [list(each) for each in self.subscriptions],
        }


class CoordinatorState:
    """The transactions of one coordinator."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.last_id = 0
        self._live: dict[int, Transaction] = {}
        self._outcomes: dict[int, Status] = {}
        self._deadlines: list[tuple[int, int]] = []
        self.created = 0
        self.committed = 0
        self.aborted = 0
        self.timeouts = 0

    # What is known.

    def __len__(self) -> int:
        """How many have not ended."""
        return len(self._live)

    def __iter__(self) -> Iterator[Transaction]:
        return iter(list(self._live.values()))

    @property
    def low_watermark(self) -> int:
        """Everything up to and with this number has ended, and all its participants know."""
        return min(self._live) - 1 if self._live else self.last_id

    def get(self, txn: TxnId) -> Transaction:
        """
        Raises:
            TransactionNotFound: it never was, or has ended.
        """
        found = self._live.get(txn.least) if txn.most == self.number else None
        if found is None:
            raise TransactionNotFound(f"transaction {txn} does not exist, or has ended")
        return found

    def outcome(self, txn: TxnId) -> Status | None:
        """How a transaction has ended, if that is still remembered."""
        return self._outcomes.get(txn.least)

    @property
    def unfinished(self) -> list[Transaction]:
        """Those whose end is decided, and not yet known to all participants."""
        return [each for each in self._live.values() if each.status is not Status.OPEN]

    def overdue(self, now_ms: int) -> list[TxnId]:
        """Open ones whose time is over. Each is named once."""
        due: list[TxnId] = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            _, least = heappop(self._deadlines)
            found = self._live.get(least)
            if found is not None and found.status is Status.OPEN:
                due.append(found.txn)
        return due

    @property
    def next_deadline_ms(self) -> int | None:
        """When the next one's time is over, as far as known: it may have ended."""
        return self._deadlines[0][0] if self._deadlines else None

    # Changes.

    def begin(self, now_ms: int, timeout_ms: int, owner: str | None) -> tuple[TxnId, Record]:
        """Open a transaction."""
        record = {
            "op": "begin",
            "id": self.last_id + 1,
            "opened": now_ms,
            "timeout": timeout_ms,
            "owner": owner,
        }
        self.apply(record)
        self.created += 1
        return TxnId(self.number, self.last_id), record

    def add_partitions(self, txn: TxnId, topics: Iterable[str]) -> Record | None:
        """The transaction will write to `topics`. None: that was known.

        Raises:
            TransactionNotFound, InvalidTransactionStatus: it is not open.
        """
        found = self._open(txn)
        new = [topic for topic in topics if topic not in found.partitions]
        return self._change({"op": "partitions", "id": txn.least, "topics": new}) if new else None

    def add_subscriptions(self, txn: TxnId, subscriptions: Iterable[tuple[str, str]]) -> Record | None:
        """The transaction will acknowledge for `subscriptions`, each with its topic. None: that was known.

        Raises:
            TransactionNotFound, InvalidTransactionStatus: it is not open.
        """
        found = self._open(txn)
        new = [list(each) for each in subscriptions if each not in found.subscriptions]
        return self._change({"op": "subscriptions", "id": txn.least, "names": new}) if new else None

    def end(self, txn: TxnId, *, commit: bool, timed_out: bool = False) -> Record | None:
        """Decide how a transaction ends. None: it was decided so before.

        Raises:
            TransactionNotFound: nothing is known of it any more.
            InvalidTransactionStatus: it ends, or has ended, the other way.
        """
        before = self.outcome(txn) if txn.most == self.number else None
        status = before if before is not None else self.get(txn).status
        if status is Status.OPEN:
            self.timeouts += timed_out
            return self._change({"op": "end", "id": txn.least, "commit": commit, "timed_out": timed_out})
        if status.committed is not commit:
            raise InvalidTransactionStatus(
                f"transaction {txn} is {status.value}: it cannot be {'committed' if commit else 'aborted'}"
            )
        return None

    def finish(self, txn: TxnId) -> Record | None:
        """All participants know how a transaction ended. None: that was known."""
        if txn.least not in self._live:
            return None
        if self._live[txn.least].status.committed:
            self.committed += 1
        else:
            self.aborted += 1
        return self._change({"op": "finish", "id": txn.least})

    def _open(self, txn: TxnId) -> Transaction:
        if txn.most == self.number and (ended := self.outcome(txn)) is not None:
            raise InvalidTransactionStatus(f"transaction {txn} is {ended.value}: begin another one")
        found = self.get(txn)
        if found.status is not Status.OPEN:
            raise InvalidTransactionStatus(f"transaction {txn} is {found.status.value}: begin another one")
        return found

    def _change(self, record: Record) -> Record:
        self.apply(record)
        return record

    # Writing down, and reading again.

    def snapshot(self) -> list[Record]:
        """Records that tell everything, to be stored one right after the other in place of all before."""
        live = [each.encode() for each in self._live.values()]
        outcomes = [[least, status.value] for least, status in self._outcomes.items()]
        parts: list[Record] = []
        for start in range(0, max(len(live), 1), _PER_RECORD):
            parts.append({"op": "snapshot", "part": len(parts), "live": live[start : start + _PER_RECORD]})
        parts[0].update(last_id=self.last_id, outcomes=outcomes)
        return parts

    def apply(self, record: Mapping[str, Any]) -> None:
        """Make a change that is, or was, written down."""
        match record["op"]:
            case "begin":
                self.last_id = max(self.last_id, record["id"])
                self._put(record)
            case "partitions":
                if (found := self._live.get(record["id"])) is not None:
                    found.partitions.update(dict.fromkeys(record["topics"]))
            case "subscriptions":
                if (found := self._live.get(record["id"])) is not None:
                    found.subscriptions.update(
                        dict.fromkeys((topic, name) for topic, name in record["names"])
                    )
            case "end":
                if (found := self._live.get(record["id"])) is not None:
                    found.status = Status.COMMITTING if record["commit"] else Status.ABORTING
                    found.timed_out = bool(record.get("timed_out"))
            case "finish":
                self._finished(record["id"])
            case "snapshot":
                self._restore(record)

    def _put(self, record: Mapping[str, Any]) -> None:
        found = Transaction(
            TxnId(self.number, record["id"]),
            record["opened"],
            record["timeout"],
            Status(record.get("status", "OPEN")),
            record.get("owner"),
            dict.fromkeys(record.get("partitions", ())),
            dict.fromkeys((topic, name) for topic, name in record.get("subscriptions", ())),
        )
        self._live[found.txn.least] = found
        heappush(self._deadlines, (found.deadline_ms, found.txn.least))

    def _finished(self, least: int) -> None:
        found = self._live.pop(least, None)
        if found is None:
            return
        self._outcomes[least] = Status.COMMITTED if found.status.committed else Status.ABORTED
        if len(self._outcomes) > OUTCOMES_MAX:
            del self._outcomes[next(iter(self._outcomes))]

    def _restore(self, record: Mapping[str, Any]) -> None:
        if record["part"] == 0:
            if len(record["live"]) < _PER_RECORD:
                self._live.clear()
                self._deadlines.clear()
            # Else other parts follow, or were to follow and are not there: then what came before tells what they would.
            self.last_id = max(self.last_id, record["last_id"])
            self._outcomes = {least: Status(status) for least, status in record["outcomes"]}
        for each in record["live"]:
            self._put(each)


def slow(transactions: Sequence[Transaction], now_ms: int, longer_than_ms: int) -> list[Transaction]:
    """Those open for longer than that."""
    return [each for each in transactions if now_ms - each.opened_ms > longer_than_ms]
