"""The judge: sees everything that passes, knows what was promised, and calls a broken promise by its name.

The names are those of the storage invariants (I1-I27). What can be judged at the moment it happens is judged then:
answers of bookies against what they had answered before, changes of metadata against what was acknowledged.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable

from magnetar.bookie.mark import FILE_NAME as MARK_FILE
from magnetar.ledger.metadata import LedgerMetadata, LedgerState
from magnetar.protocol.bookie import BookieStatus

OK = BookieStatus.OK


class InvariantBroken(AssertionError):
    """What must never happen has happened; the seed tells the story again."""

    def __init__(self, name: str, what: str, seed: int = -1) -> None:
        super().__init__(f"seed {seed}: {name}: {what}")
        self.name = name
        self.what = what
        self.seed = seed


class History:
    """All that happened, in order, with its time."""

    def __init__(self, now: Callable[[], float], *, kept: bool = False) -> None:
        self._now = now
        self._digest = hashlib.sha256()
        self._passed: list[tuple[object, ...]] = []
        """Not in the digest yet."""
        self._kept = kept
        self.lines: list[str] = []
        self.events = 0

    def told(self, what: str) -> None:
        """Something a reader of the story wants to know."""
        line = f"{self._now():10.4f}  {what}"
        self._passed.append((line,))
        self.lines.append(line)
        self.events += 1

    def passed(self, *what: object) -> None:
        """One message of many: in the digest, and in the story only where all of it is wanted."""
        passed = self._passed
        passed.append((self._now(), what))
        if len(passed) > 1000:
            self._digest_passed()
        self.events += 1
        if self._kept:
            self.lines.append(f"{self._now():10.4f}    {' '.join(map(str, what))}")

    def aside(self, what: str) -> None:
        """For the story alone."""
        if self._kept:
            self.lines.append(f"{self._now():10.4f}      | {what}")

    @property
    def digest(self) -> str:
        self._digest_passed()
        return self._digest.hexdigest()[:32]

    def _digest_passed(self) -> None:
        self._digest.update(repr(self._passed).encode())
        self._passed.clear()


class Judge:
    """Remembers the first broken invariant: those who are watched must not be able to swallow it."""

    def __init__(self, seed: int, now: Callable[[], float], history: History) -> None:
        self.seed = seed
        self._now = now
        self.history = history
        self.broken: InvariantBroken | None = None
        self.over = False
        """What is cleared away after the end proves nothing."""
        self.met: Counter[str] = Counter()
        """How often the run has met what is worth meeting."""
        self.metadata: dict[int, LedgerMetadata] = {}
        """Of all ledgers, as they are stored now."""
        self.closed: dict[int, LedgerMetadata] = {}
        self.bookie_has: dict[str, dict[int, set[int]]] = {}
        """What each bookie has acknowledged to hold, since it last lost its disk."""
        self.fenced: dict[tuple[str, int], float] = {}
        """When a bookie has first answered a fence of a ledger."""
        self.first_sent: dict[tuple[int, int], float] = {}
        self.writers: dict[int, set[str]] = {}
        """Who has sent entries of a ledger as its writer."""
        self.denials: dict[tuple[str, int, int], set[str]] = {}
        """Which bookies have told a client that recovers a ledger that they never had an entry."""
        self.covered_at: dict[int, float] = {}
        """When a recovery began to read a ledger's tail: it had fenced enough."""
        self.recovering: dict[int, set[str]] = {}
        self.highest_acked: dict[int, int] = {}
        """The highest entry of each ledger that any caller was told of."""
        self.acked: dict[int, dict[int, bytes]] = {}
        self.swapped: set[str] = set()
        """Bookies that have got an empty disk, and have not been known to have lost what they held."""
        self.rotten: set[str] = set()
        """Bookies whose disk has flipped bits: they may not know what they held."""

    def expect(self, name: str, holds: bool, otherwise: str) -> None:
        if not holds and self.broken is None and not self.over:
            self.history.told(f"!! {name}: {otherwise}")
            self.broken = InvariantBroken(name, otherwise, self.seed)

    # What writers and recoveries send.

    def sent(self, client: str, ledger_id: int, entry_id: int) -> None:
        """A writer, and no recovery, sends an entry."""
        self.first_sent.setdefault((ledger_id, entry_id), self._now())
        self.writers.setdefault(ledger_id, set()).add(client)

    def denied(self, client: str, bookie: str, ledger_id: int, entry_id: int) -> None:
        """A client that recovers a ledger is told that a bookie never had an entry."""
        self.denials.setdefault((client, ledger_id, entry_id), set()).add(bookie)

    def fencing_read(self, client: str, ledger_id: int) -> None:
        if ledger_id not in self.covered_at:
            self.covered_at[ledger_id] = self._now()

    def fencing(self, client: str, ledger_id: int) -> None:
        """A client begins to fence a ledger."""
        clients = self.recovering.setdefault(ledger_id, set())
        if client not in clients:
            clients.add(client)
            metadata = self.metadata.get(ledger_id)
            if len(clients) > 1 and metadata is not None and not metadata.closed:
                self.met["concurrent recoveries"] += 1

    # What bookies answer.

    def added(
        self,
        bookie: str,
        ledger_id: int,
        entry_id: int,
        writes_back: bool,
        status: BookieStatus,
        arrived: float,
        refuses: bool,
    ) -> None:
        """`refuses`: it must not take what comes from a writer."""
        if status is BookieStatus.FENCED:
            self.met["fences racing appends"] += 1
        if status is not OK:
            return
        self.bookie_has.setdefault(bookie, {}).setdefault(ledger_id, set()).add(entry_id)
        if not writes_back:
            fenced = self.fenced.get((bookie, ledger_id))
            self.expect(
                "I11",
                fenced is None or arrived <= fenced,
                f"{bookie} took entry {ledger_id}:{entry_id} after it had answered that the ledger is fenced",
            )
            self.expect("I21", not refuses, f"{bookie} is read-only and took entry {ledger_id}:{entry_id}")

    def fence_answered(self, bookie: str, ledger_id: int, status: BookieStatus) -> None:
        if not status.is_unknown:
            self.fenced.setdefault((bookie, ledger_id), self._now())

    def read_answered(
        self, bookie: str, ledger_id: int, entry_id: int, status: BookieStatus, had_it: bool
    ) -> None:
        if status.is_negative and had_it and ledger_id in self.metadata:
            self.expect(
                "I15",
                False,
                f"{bookie} denies entry {ledger_id}:{entry_id}, which it had acknowledged",
            )

    def had(self, bookie: str, ledger_id: int, entry_id: int) -> bool:
        return entry_id in self.bookie_has.get(bookie, {}).get(ledger_id, ())

    def disk_swapped(self, bookie: str) -> None:
        """What it had acknowledged it may not deny, and fences are asked for again where a writer may still write."""
        self.swapped.add(bookie)
        self.rotten.add(bookie)
        for key in [each for each in self.fenced if each[0] == bookie]:
            metadata = self.metadata.get(key[1])
            if metadata is None or metadata.closed or bookie not in metadata.segments[-1].ensemble:
                del self.fenced[key]

    def in_limbo(self, bookie: str) -> None:
        """It knows that it has lost what it held."""
        self.met["swapped disks in limbo"] += bookie in self.swapped
        self.swapped.discard(bookie)

    def serves(self, bookie: str) -> None:
        self.expect(
            "I20",
            bookie not in self.swapped,
            f"{bookie} serves from an empty disk as if it had never held anything",
        )

    # Acknowledgements to callers.

    def acknowledged(self, ledger_id: int, entry_id: int, payload: bytes) -> None:
        expected = self.highest_acked.get(ledger_id, -1) + 1
        self.expect(
            "I2",
            entry_id == expected,
            f"entry {ledger_id}:{entry_id} was acknowledged where {expected} was due",
        )
        self.highest_acked[ledger_id] = max(entry_id, expected - 1)
        self.acked.setdefault(ledger_id, {})[entry_id] = payload
        sent, covered = self.first_sent.get((ledger_id, entry_id)), self.covered_at.get(ledger_id)
        self.expect(
            "I5",
            sent is None or covered is None or sent <= covered,
            f"entry {ledger_id}:{entry_id} was sent after an ack quorum was fenced, and acknowledged",
        )
        closed = self.closed.get(ledger_id)
        self.expect(
            "I4",
            closed is None or entry_id <= closed.last_entry,
            f"entry {ledger_id}:{entry_id} was acknowledged after the ledger was closed before it",
        )

    # Metadata.

    def ledger_written(self, metadata: LedgerMetadata, writer: str) -> None:
        """A ledger's record has changed, by whomever."""
        ledger_id = metadata.ledger_id
        before = self.metadata.get(ledger_id)
        self.metadata[ledger_id] = metadata
        closed = self.closed.get(ledger_id)
        if closed is not None:
            same = (metadata.state, metadata.last_entry, metadata.length)
            self.expect(
                "I3",
                same == (closed.state, closed.last_entry, closed.length),
                f"ledger {ledger_id} was closed at {closed.last_entry}, and is {metadata.state.value} at"
                f" {metadata.last_entry} now",
            )
        firsts = [segment.first_entry for segment in metadata.segments]
        self.expect(
            "I7",
            firsts[0] == 0 and firsts == sorted(set(firsts)),
            f"ledger {ledger_id} has segments at {firsts}",
        )
        if before is not None and not before.closed:
            self._judge_change(before, metadata, writer)
        if closed is not None:
            self._judge_substitution(closed, metadata, writer)
        if metadata.closed:
            if closed is None:
                self.met["ledgers closed"] += 1
                if before is not None and before.state is LedgerState.IN_RECOVERY:
                    self.met["recoveries"] += 1
                    self._judge_end(before, metadata.last_entry, writer)
                self.expect(
                    "I4",
                    metadata.last_entry >= self.highest_acked.get(ledger_id, -1),
                    f"ledger {ledger_id} was closed at {metadata.last_entry}, and entry"
                    f" {self.highest_acked.get(ledger_id, -1)} had been acknowledged",
                )
            self.closed[ledger_id] = metadata

    def _judge_end(self, before: LedgerMetadata, last_entry: int, closed_by: str) -> None:
        """Who recovers a ledger ends it where enough bookies vouch that they never had the next entry."""
        ledger_id = before.ledger_id
        if closed_by in self.writers.get(ledger_id, ()) or closed_by not in self.recovering.get(
            ledger_id, ()
        ):
            return  # Its writer knows the end by itself.
        fragment = before.last_fragment
        denied = self.denials.get((closed_by, ledger_id, last_entry + 1), set())
        vouching = denied & set(fragment.write_set(last_entry + 1))
        self.met["ends of recoveries judged"] += 1
        self.expect(
            "I10",
            len(vouching) > before.write_quorum - before.ack_quorum,
            f"{closed_by} has ended ledger {ledger_id} at {last_entry}, and only {sorted(vouching)} vouch for the end",
        )

    def _judge_change(self, before: LedgerMetadata, after: LedgerMetadata, writer: str) -> None:
        """Of an open ledger only the last segment may change, or one be added behind what is confirmed."""
        ledger_id = after.ledger_id
        if len(after.segments) > len(before.segments):
            self.met["ensemble changes"] += 1
        kept = min(len(before.segments), len(after.segments)) - 1
        for old, new in zip(before.segments[:kept], after.segments[:kept], strict=True):
            self.expect(
                "I7",
                old.first_entry == new.first_entry,
                f"ledger {ledger_id}: the segment at {old.first_entry} has moved to {new.first_entry}",
            )
        self.expect(
            "I6",
            not (before.state is LedgerState.IN_RECOVERY and after.state is LedgerState.OPEN),
            f"ledger {ledger_id} was in recovery and is open again",
        )
        if before.state is LedgerState.IN_RECOVERY and after.state is LedgerState.IN_RECOVERY:
            self.expect(
                "I6",
                len(before.segments) == len(after.segments),
                f"the ensemble of ledger {ledger_id} has changed while it is in recovery",
            )

    def _judge_substitution(self, before: LedgerMetadata, after: LedgerMetadata, writer: str) -> None:
        """A closed fragment changes by substitution only, and the new bookie has all of it already."""
        for at, (old, new) in enumerate(zip(before.segments, after.segments, strict=False)):
            end = after.segments[at + 1].first_entry - 1 if at + 1 < len(after.segments) else after.last_entry
            for slot, (was, now) in enumerate(zip(old.ensemble, new.ensemble, strict=True)):
                if was == now:
                    continue
                self.met["copies moved"] += 1
                fragment = after.fragment_of(new.first_entry)
                has = self.bookie_has.get(now, {}).get(after.ledger_id, set())
                lacks = [
                    entry_id
                    for entry_id in range(new.first_entry, end + 1)
                    if slot in fragment.write_slots(entry_id) and entry_id not in has
                ]
                lost = [each for each in lacks if self._was_there(before, each)]
                self.expect(
                    "I18",
                    not lost,
                    f"{now} is named for ledger {after.ledger_id} in the place of {was} and lacks entries {lost[:5]}",
                )

    def _was_there(self, metadata: LedgerMetadata, entry_id: int) -> bool:
        """Whether any bookie that is not rotten has it: what nobody has, nobody can copy."""
        fragment = metadata.fragment_of(entry_id)
        return any(
            self.had(fragment.ensemble[slot], metadata.ledger_id, entry_id)
            for slot in fragment.write_slots(entry_id)
        )

    def ledger_deleted(self, ledger_id: int) -> None:
        self.metadata.pop(ledger_id, None)
        self.closed.pop(
            ledger_id, None
        )  # Its creation, sent twice, may still come and be believed by nobody.

    # What bookies do on their disks.

    def forgotten(self, bookie: str, ledger_id: int) -> None:
        """A bookie drops a ledger from its index."""
        self.met["ledgers collected"] += 1
        metadata = self.metadata.get(ledger_id)
        named = metadata is not None and any(bookie in segment.ensemble for segment in metadata.segments)
        self.expect("I16", not named, f"{bookie} has forgotten ledger {ledger_id}, of which it is a bookie")
        if metadata is None:  # Nobody will ever read it: its fence may go, too.
            self.fenced.pop((bookie, ledger_id), None)
            self.bookie_has.get(bookie, {}).pop(ledger_id, None)

    def file_removed(self, bookie: str, name: str, mark_segment: int | None) -> None:
        """A file of a bookie's disk goes: no journal that a restart would need."""
        if mark_segment is not None and name.endswith(".journal"):
            segment = int(name[: -len(".journal")], 16)
            self.expect(
                "I14",
                segment < mark_segment,
                f"{bookie} removes journal segment {segment}, and its {MARK_FILE} says {mark_segment}",
            )
