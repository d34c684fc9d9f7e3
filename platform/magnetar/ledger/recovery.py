"""Recovery of a ledger whose writer is gone: fence it, replay its tail, find its end. Pure.

    fence all of the last ensemble -> coverage -> read on from the LAC, fencing with each read, and write back
    what is found -> the first entry that cannot have been acknowledged is past the end -> close

Whatever may have been acknowledged is kept, and nothing is decided from an unknown answer: then recovery gives
up and the ledger stays in recovery. Several recoveries may run at once: they all keep what could have been
acknowledged, and the first to close decides. Late and repeated replies do no harm.
Source: BookKeeper `LedgerRecoveryOp`, `ReadLastConfirmedOp`; traps T1, T2, T7, T17, T18 of the storage fact sheet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from magnetar.ledger.coverage import covers
from magnetar.ledger.metadata import LedgerMetadata, Segment
from magnetar.ledger.quorum_read import QuorumRead, Verdict
from magnetar.ledger.write_pipeline import AddOutcome, PendingAdd, WritePipeline
from magnetar.protocol.bookie import BookieStatus

DEFAULT_WINDOW = 32


@dataclass(frozen=True, slots=True)
class FenceAndReadLac:
    """Fence the ledger at a bookie and ask for its LAC. Answer by `fenced`."""

    slot: int
    bookie: str


@dataclass(frozen=True, slots=True)
class ReadReplica:
    """Read an entry from a bookie, with the fence. Answer by `read`."""

    entry_id: int
    slot: int
    bookie: str


@dataclass(frozen=True, slots=True)
class WriteBack:
    """Write an entry to a bookie as a recovery add. Answer by `written`."""

    add: PendingAdd[None]
    slot: int
    bookie: str


@dataclass(frozen=True, slots=True)
class ReplaceBookies:
    """Find other bookies for the slots `failed`. Answer by `replaced`."""

    ensemble: tuple[str, ...]
    failed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CloseLedger:
    """Close the ledger in the metadata, with these segments added; or adopt what another has closed it at."""

    last_entry: int
    length: int
    added: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Too little is known. The ledger stays in recovery; try again later."""

    reason: str
    missing: tuple[str, ...] = ()
    """The bookies whose answers are missing, or that do not take what is written back."""


Request = FenceAndReadLac | ReadReplica | WriteBack | ReplaceBookies | CloseLedger | GiveUp


@dataclass(frozen=True, slots=True)
class StoredCopy:
    """An entry read from a replica, its checksum verified."""

    stored: bytes
    length: int
    """The ledger's length up to and with this entry."""
    payload_size: int


class _Phase(Enum):
    FENCING = auto()
    READING = auto()
    WRITING = auto()
    MEASURING = auto()
    DONE = auto()


class LedgerRecovery:
    """One attempt, on the metadata as they were when the ledger was put in recovery."""

    def __init__(self, metadata: LedgerMetadata, *, window: int = DEFAULT_WINDOW) -> None:
        self._metadata = metadata
        self._fragment = metadata.last_fragment
        self._window = window
        self._reach = 1
        """How far ahead it reads: most ledgers have no tail, so it reaches further only as it finds entries."""
        self._phase = _Phase.FENCING
        self._fence_waiting = set(range(len(self._fragment.ensemble)))
        self._fenced: set[int] = set()
        self._unknown: dict[str, BookieStatus] = {}
        """Who last gave no usable answer, and which."""
        self._max_lac = -1
        self._pipeline: WritePipeline[None] = WritePipeline(self._fragment)
        self._reads: dict[int, QuorumRead] = {}
        self._copies: dict[int, StoredCopy] = {}
        self._next = 0
        """The entry whose verdict is due."""
        self._next_read = 0
        self._last_entry = -1
        self._length: int | None = None
        self._irreplaceable: set[str] = set()
        self._added: list[Segment] = []
        self.recovered = 0
        """How many entries were written back."""

    def start(self) -> list[Request]:
        return [FenceAndReadLac(slot, bookie) for slot, bookie in enumerate(self._fragment.ensemble)]

    # Fencing.

    def fenced(self, slot: int, status: BookieStatus, lac: int) -> list[Request]:
        """A bookie has answered the fence. One that vouches it has nothing is fenced as well."""
        if self._phase is not _Phase.FENCING or slot not in self._fence_waiting:
            return []
        self._fence_waiting.discard(slot)
        self._note(self._fragment.ensemble[slot], status)
        if not status.is_unknown:
            self._fenced.add(slot)
            self._max_lac = max(self._max_lac, lac)
            if covers(
                len(self._fragment.ensemble),
                self._fragment.write_quorum,
                self._fragment.ack_quorum,
                self._fenced,
            ):
                return self._begin_reading()
        if self._fence_waiting:
            return []
        return self._give_up(
            f"{len(self._fenced)} of {len(self._fragment.ensemble)} bookies could be fenced,"
            " and an ack quorum may hide among the others",
            [bookie for slot, bookie in enumerate(self._fragment.ensemble) if slot not in self._fenced],
        )

    def _begin_reading(self) -> list[Request]:
        self._phase = _Phase.READING
        # Earlier segments are immutable, and all they hold is confirmed.
        start = max(self._max_lac, self._fragment.first_entry - 1)
        self._next = self._next_read = start + 1
        self._last_entry = start
        self._pipeline = WritePipeline(self._fragment, last_confirmed=start)
        return self._read_ahead()

    # Reading forward.

    def _read_ahead(self) -> list[Request]:
        requests: list[Request] = []
        # Neither reads nor unwritten entries may pile up.
        limit = min(self._next + self._reach, self._pipeline.last_confirmed + 1 + 2 * self._window)
        while self._next_read < limit:
            requests += self._ask(self._next_read)
            self._next_read += 1
        return requests

    def _ask(self, entry_id: int) -> list[Request]:
        fragment = self._metadata.fragment_of(entry_id)
        slots = fragment.write_slots(entry_id)
        self._reads[entry_id] = QuorumRead(slots, fragment.ack_quorum)
        return [ReadReplica(entry_id, slot, fragment.ensemble[slot]) for slot in slots]

    def read(self, entry_id: int, slot: int, status: BookieStatus, copy: StoredCopy | None) -> list[Request]:
        """A replica has answered. Bytes that fail their checksum are to be reported as `UNKNOWN`."""
        quorum = self._reads.get(entry_id)
        if quorum is None or self._phase not in (_Phase.READING, _Phase.MEASURING):
            return []
        self._note(self._metadata.fragment_of(entry_id).ensemble[slot], status)
        if status.is_positive:
            assert copy is not None
            self._copies.setdefault(entry_id, copy)
        quorum.answered(slot, status)
        if self._phase is _Phase.MEASURING:
            return self._measure(quorum)
        return self._advance()

    def _advance(self) -> list[Request]:
        requests: list[Request] = []
        while self._phase is _Phase.READING and self._next < self._next_read:
            match self._reads[self._next].verdict:
                case None:
                    break
                case Verdict.PRESENT:
                    requests += self._write_back(self._next)
                case Verdict.ABSENT:
                    self._last_entry = self._next - 1
                    self._phase = _Phase.WRITING
                    self._reads.clear()
                    self._copies.clear()
                    return requests + self._written_all()
                case Verdict.UNKNOWN:
                    return self._give_up(
                        f"nobody can tell whether entry {self._next} was acknowledged",
                        self._silent(self._next),
                    )
        if self._phase is _Phase.READING:
            requests += self._read_ahead()
        return requests

    def _write_back(self, entry_id: int) -> list[Request]:
        del self._reads[entry_id]
        copy = self._copies.pop(entry_id)
        self._pipeline.length = copy.length - copy.payload_size
        add = self._pipeline.push(copy.payload_size, None)
        assert add.entry_id == entry_id
        add.parts = (copy.stored,)
        self._length = copy.length
        self._next += 1
        self._reach = min(2 * self._reach, self._window)
        self.recovered += 1
        return [
            WriteBack(add, slot, self._pipeline.ensemble[slot])
            for slot in self._pipeline.write_slots(entry_id)
        ]

    # Writing back.

    def written(self, add: PendingAdd[None], slot: int, bookie: str, status: BookieStatus) -> list[Request]:
        """A bookie has answered a write-back."""
        if self._phase is _Phase.DONE:
            return []
        if status.is_positive:
            if self._pipeline.add_succeeded(add, slot, bookie):
                return self._confirm()
            return []
        match self._pipeline.add_failed(add, slot, bookie, status):
            case AddOutcome.LATE:
                return []
            case AddOutcome.FATAL:
                return self._give_up(f"bookie {bookie} refused entry {add.entry_id}: {status.name}", [bookie])
            case AddOutcome.REPLACE:
                return self._replace()

    def _replace(self) -> list[Request]:
        pipeline = self._pipeline
        if pipeline.changing:
            return []
        failed = tuple(
            slot for slot, bookie in sorted(pipeline.failed.items()) if bookie not in self._irreplaceable
        )
        if failed:
            pipeline.begin_change()
            return [ReplaceBookies(pipeline.ensemble, failed)]
        if pipeline.quorum_lost:
            return self._give_up(
                "too many bookies fail for the tail to be written back",
                [bookie for bookie in pipeline.ensemble if bookie in self._irreplaceable],
            )
        return []

    def replaced(self, asked: ReplaceBookies, replacements: Mapping[int, str]) -> list[Request]:
        """Other bookies for failed slots, as many as were found. Only a close makes them known."""
        if self._phase is _Phase.DONE:
            return []
        pipeline = self._pipeline
        first = pipeline.last_confirmed + 1
        self._irreplaceable.update(asked.ensemble[slot] for slot in asked.failed if slot not in replacements)
        requests: list[Request] = [
            WriteBack(add, slot, replacements[slot]) for add, slot in pipeline.end_change(replacements)
        ]
        if replacements:
            if self._added and self._added[-1].first_entry == first:
                self._added.pop()
            self._added.append(Segment(first, pipeline.ensemble))
        return requests + self._replace() + self._confirm()

    def _confirm(self) -> list[Request]:
        self._pipeline.take_confirmed()
        if self._phase is _Phase.READING:
            return self._read_ahead()
        return self._written_all()

    # The end.

    def _written_all(self) -> list[Request]:
        if self._phase is not _Phase.WRITING or self._pipeline.last_confirmed < self._last_entry:
            return []
        if self._last_entry < 0:
            return self._close(0)
        if self._length is not None:
            return self._close(self._length)
        # Nothing was written back, so the length is only told by the last confirmed entry itself.
        self._phase = _Phase.MEASURING
        return self._ask(self._last_entry)

    def _measure(self, quorum: QuorumRead) -> list[Request]:
        match quorum.verdict:
            case None:
                return []
            case Verdict.PRESENT:
                return self._close(self._copies[self._last_entry].length)
            case Verdict.ABSENT | Verdict.UNKNOWN:
                return self._give_up(
                    f"the last confirmed entry, {self._last_entry}, cannot be read",
                    self._silent(self._last_entry),
                )

    def _close(self, length: int) -> list[Request]:
        self._phase = _Phase.DONE
        return [CloseLedger(self._last_entry, length, tuple(self._added))]

    def _note(self, bookie: str, status: BookieStatus) -> None:
        if status.is_unknown:
            self._unknown[bookie] = status
        else:
            self._unknown.pop(bookie, None)

    def _silent(self, entry_id: int) -> list[str]:
        """The replicas of an entry that give no answer."""
        replicas = self._metadata.fragment_of(entry_id).write_set(entry_id)
        return [bookie for bookie in replicas if bookie in self._unknown]

    def _give_up(self, reason: str, missing: Sequence[str]) -> list[Request]:
        self._phase = _Phase.DONE
        named = ", ".join(
            f"{bookie} ({self._unknown[bookie].name})" if bookie in self._unknown else bookie
            for bookie in missing
        )
        return [GiveUp(f"{reason}; missing: {named}" if named else reason, tuple(missing))]
