"""What is acknowledged within transactions that have not ended: it counts when they commit. Pure.

One transaction at a time may hold the acknowledgement of a message. What is held is delivered to nobody, until the
transaction aborts. As in `coordinator_state.py` every change is a record; `apply` makes the change of one that is
read again. Source: Pulsar PIP-54 for ack sets, PendingAckHandle for what conflicts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from magnetar.broker.errors import InvalidTransactionStatus, TransactionConflict
from magnetar.broker.transactions.ended import EndedTransactions
from magnetar.broker.transactions.txn_id import TxnId
from magnetar.managed_ledger import Position
from magnetar.protocol import ack_sets

FORMAT: Final = 1
_PER_RECORD: Final = 1000

Record: TypeAlias = dict[str, Any]
AckSet: TypeAlias = Sequence[int] | None
"""Of a batch, 1 for each message that is not acknowledged; None: all of the entry is."""


@dataclass(frozen=True, slots=True)
class Acked:
    """One entry, as an acknowledgement names it."""

    position: Position
    ack_set: AckSet = None
    batch_size: int = 0
    """As the client told it; 0: it did not."""


@dataclass(slots=True)
class Settled:
    """What a transaction held when it ended."""

    individual: list[tuple[Position, AckSet]] = field(default_factory=list)
    cumulative: tuple[Position, AckSet] | None = None

    def __bool__(self) -> bool:
        return bool(self.individual) or self.cumulative is not None


class PendingAcks:
    """The provisional acknowledgements of one subscription."""

    def __init__(self) -> None:
        self.ended = EndedTransactions()
        self._individual: dict[TxnId, dict[Position, AckSet]] = {}
        self._holders: dict[Position, dict[TxnId, int]] = {}
        """Who holds something of an entry; with the batch's size, 0 where nobody told."""
        self.cumulative: tuple[TxnId, Position, AckSet] | None = None

    # What is known.

    def __len__(self) -> int:
        """How many entries are held, in whole or in part, one by one."""
        return len(self._holders)

    @property
    def transactions(self) -> set[TxnId]:
        """Those that hold anything."""
        cumulative = {self.cumulative[0]} if self.cumulative is not None else set()
        return cumulative | self._individual.keys()

    def cumulative_of(self, txn: TxnId) -> Position | None:
        """Up to where a transaction has acknowledged, if it has cumulatively."""
        if self.cumulative is not None and self.cumulative[0] == txn:
            return self.cumulative[1]
        return None

    def left_of(self, position: Position, unacked: Sequence[int] | None) -> Sequence[int] | None:
        """What of an entry nobody holds: an ack set, empty for nothing; None: all of it.

        `unacked` is what is left of it apart from this.
        """
        left = unacked
        if self.cumulative is not None and position <= self.cumulative[1]:
            _, last, ack_set = self.cumulative
            if position < last or ack_set is None:
                return ()
            left = ack_set if left is None else ack_sets.and_(left, ack_set)
        for txn in self._holders.get(position, ()):
            held = self._individual[txn][position]
            if held is None:
                return ()
            left = held if left is None else ack_sets.and_(left, held)
        return left

    # Changes.

    def check_open(self, txn: TxnId) -> None:
        """
        Raises:
            InvalidTransactionStatus: the transaction has ended here.
        """
        if txn in self.ended:
            raise InvalidTransactionStatus(f"transaction {txn} has ended: acknowledge in another one")

    def hold(
        self,
        txn: TxnId,
        acked: Iterable[Acked],
        *,
        is_acknowledged: Callable[[Position], bool],
        unacked: Callable[[Position], Sequence[int] | None],
    ) -> Record | None:
        """Hold entries, or parts of them, for a transaction: all of them, or none. None: it held them already.

        Args:
            is_acknowledged: whether an entry is acknowledged for good.
            unacked: what is left of one that is acknowledged for good in part.
        Raises:
            TransactionConflict: something of it is acknowledged, or held by another transaction.
            InvalidTransactionStatus: the transaction has ended here.
        """
        self.check_open(txn)
        own = self._individual.get(txn, {})
        new: list[list[Any]] = []
        for each in acked:
            position = each.position
            if position in own and _covers(own[position], each.ack_set):
                continue
            if is_acknowledged(position) or self._overlaps(txn, each, unacked(position)):
                raise TransactionConflict(
                    f"message {position} is acknowledged already, or within another transaction than {txn}"
                )
            ack_set = None if each.ack_set is None else list(each.ack_set)
            new.append([*position, ack_set, each.batch_size])
        if not new:
            return None
        return self._change({"op": "hold", "txn": list(txn), "entries": new})

    def _overlaps(self, txn: TxnId, each: Acked, unacked: Sequence[int] | None) -> bool:
        if self.cumulative is not None and each.position <= self.cumulative[1]:
            _, last, reached = self.cumulative
            if each.position < last or reached is None or _overlap(reached, each.ack_set, each.batch_size):
                return True
        if unacked is not None and _overlap(unacked, each.ack_set, each.batch_size):
            return True
        return any(
            other != txn
            and _overlap(self._individual[other][each.position], each.ack_set, max(size, each.batch_size))
            for other, size in self._holders.get(each.position, {}).items()
        )

    def hold_up_to(
        self, txn: TxnId, position: Position, ack_set: AckSet, mark_delete: Position
    ) -> Record | None:
        """Hold everything up to and with `position` for a transaction. None: it held that already.

        Raises:
            TransactionConflict: it is acknowledged, or another transaction holds something of it.
            InvalidTransactionStatus: the transaction has ended here.
        """
        self.check_open(txn)
        if self.cumulative is not None:
            holder, last, reached = self.cumulative
            if holder != txn:
                raise TransactionConflict(f"transaction {holder} has acknowledged up to {last}")
            if position < last or (position == last and _covers(reached, ack_set)):
                return None
        if position <= mark_delete:
            raise TransactionConflict(f"everything up to {mark_delete} is acknowledged already")
        other = next((each for each in self._individual if each != txn and self._below(each, position)), None)
        if other is not None:
            raise TransactionConflict(f"transaction {other} has acknowledged a message up to {position}")
        return self._change(
            {
                "op": "hold_up_to",
                "txn": list(txn),
                "position": list(position),
                "ack_set": None if ack_set is None else list(ack_set),
            }
        )

    def _below(self, txn: TxnId, position: Position) -> bool:
        return any(each <= position for each in self._individual[txn])

    def end(self, txn: TxnId, *, commit: bool, watermark: int) -> tuple[Settled, Record | None]:
        """A transaction has ended. Returns what it held, and the record of it; None: it was known."""
        news = self.ended.raise_watermark(txn.most, watermark)
        if txn in self.ended and txn not in self.transactions:
            return Settled(), {"op": "watermark", "most": txn.most, "least": watermark} if news else None
        return self._settle(txn), {"op": "end", "txn": list(txn), "commit": commit, "watermark": watermark}

    @property
    def orphans(self) -> list[TxnId]:
        """They hold something, though their coordinators say that they have ended, and everybody concerned was told."""
        watermarks = self.ended.watermarks
        return sorted(txn for txn in self.transactions if txn.least <= watermarks.get(txn.most, 0))

    def forget_all(self) -> Record:
        """The subscription was moved: what was acknowledged before means nothing any more."""
        return self._change({"op": "forget"})

    def _change(self, record: Record) -> Record:
        self.apply(record)
        return record

    # Writing down, and reading again.

    def snapshot(self) -> list[Record]:
        """Records that tell everything, to be stored one right after the other in place of all before."""
        entries = [
            [*txn, *position, None if ack_set is None else list(ack_set), self._holders[position][txn]]
            for txn, held in self._individual.items()
            for position, ack_set in held.items()
        ]
        parts: list[Record] = []
        for start in range(0, max(len(entries), 1), _PER_RECORD):
            parts.append(
                {"op": "snapshot", "part": len(parts), "entries": entries[start : start + _PER_RECORD]}
            )
        cumulative = None
        if self.cumulative is not None:
            txn, last, reached = self.cumulative
            cumulative = [*txn, *last, None if reached is None else list(reached)]
        parts[0].update(
            cumulative=cumulative,
            watermarks=[list(each) for each in self.ended.watermarks.items()],
            ended=[list(each) for each in self.ended],
        )
        return parts

    def apply(self, record: Mapping[str, Any]) -> Settled | None:
        """Make a change that is, or was, written down. Returns what is acknowledged for good by that, if anything."""
        match record["op"]:
            case "hold":
                txn = TxnId(*record["txn"])
                for ledger_id, entry_id, ack_set, size in record["entries"]:
                    self._put(txn, Position(ledger_id, entry_id), ack_set, size)
            case "hold_up_to":
                self.cumulative = TxnId(*record["txn"]), Position(*record["position"]), record["ack_set"]
            case "end":
                txn = TxnId(*record["txn"])
                settled = self._settle(txn)
                self.ended.raise_watermark(txn.most, record["watermark"])
                return settled if record["commit"] else None
            case "watermark":
                self.ended.raise_watermark(record["most"], record["least"])
            case "forget":
                self._individual.clear()
                self._holders.clear()
                self.cumulative = None
            case "snapshot":
                self._restore(record)
        return None

    def _put(self, txn: TxnId, position: Position, ack_set: AckSet, size: int) -> None:
        held = self._individual.setdefault(txn, {})
        if position in held:
            before = held[position]
            ack_set = None if before is None or ack_set is None else ack_sets.and_(before, ack_set)
        held[position] = ack_set
        holders = self._holders.setdefault(position, {})
        holders[txn] = max(size, holders.get(txn, 0))

    def _drop(self, txn: TxnId, position: Position) -> None:
        held = self._individual.get(txn)
        if held is None or held.pop(position, ()) == ():
            return
        if not held:
            del self._individual[txn]
        holders = self._holders[position]
        del holders[txn]
        if not holders:
            del self._holders[position]

    def _settle(self, txn: TxnId) -> Settled:
        settled = Settled(list(self._individual.get(txn, {}).items()))
        for position, _ in settled.individual:
            self._drop(txn, position)
        if self.cumulative is not None and self.cumulative[0] == txn:
            settled.cumulative = self.cumulative[1:]
            self.cumulative = None
        self.ended.add(txn)
        return settled

    def _restore(self, record: Mapping[str, Any]) -> None:
        if record["part"] == 0:
            if len(record["entries"]) < _PER_RECORD:
                self._individual.clear()
                self._holders.clear()
            # Else other parts follow, or were to follow and are not there: then what came before tells what they would.
            self.cumulative = None
            if (told := record["cumulative"]) is not None:
                most, least, ledger_id, entry_id, reached = told
                self.cumulative = TxnId(most, least), Position(ledger_id, entry_id), reached
            self.ended.restore(
                dict(record["watermarks"]), (TxnId(most, least) for most, least in record["ended"])
            )
        for most, least, ledger_id, entry_id, ack_set, size in record["entries"]:
            self._put(TxnId(most, least), Position(ledger_id, entry_id), ack_set, size)


def _covers(held: AckSet, wanted: AckSet) -> bool:
    """Whether all that `wanted` acknowledges is acknowledged by `held`."""
    if held is None:
        return True
    return wanted is not None and ack_sets.to_bits(held) & ~ack_sets.to_bits(wanted) == 0


def _overlap(first: AckSet, second: AckSet, batch_size: int) -> bool:
    """Whether both acknowledge some message of a batch."""
    if first is None or second is None:
        return True
    one, other = ack_sets.to_bits(first), ack_sets.to_bits(second)
    # Where nobody told the batch's size, it has at least so many messages as either has left.
    size = max(batch_size, one.bit_length(), other.bit_length())
    everything = (1 << size) - 1
    return bool(everything & ~one & ~other)
