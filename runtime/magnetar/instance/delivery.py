"""What is run, published, dead-lettered and acknowledged, and in which order: the guarantees, and nothing else.

One `Delivery` per concrete input topic. Entries come in, effects come out; a shell carries them out and reports
back. Time enters as an argument. Late and repeated reports do no harm.

    received ──▶ Run ──▶ ran ──▶ Publish / DeadLetter ──▶ stored ──▶ Acknowledge
                  ▲        │ failed
                  └─ wake ─┘

ATMOST_ONCE acknowledges first. All others acknowledge an entry after the receipts of everything that came of it.

EFFECTIVELY_ONCE rests on one invariant: *when a result or a dead letter is stored, everything that came of earlier
messages of the input is stored too.* Then what is committed is what the highest stored sequence ids say, and a
new host runs nothing below them again. Results go to one topic, in order; a dead letter goes to another, so it
waits for all results before it, and all results after it wait for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from magnetar.functions.config import Guarantee

P = TypeVar("P")
"""What an output is to the shell: this core never looks inside."""

LOSSES_TO_BLAME = 3
"""How often in a row the user process must die on the same single message before that counts as its failure."""


class Position(NamedTuple):
    """Where an entry is stored. Grows along a topic."""

    ledger_id: int
    entry_id: int


@dataclass(frozen=True, slots=True)
class Policy:
    """What is promised."""

    guarantee: Guarantee = Guarantee.ATLEAST_ONCE
    ordered: bool = False
    retries: int | None = None
    """How often a failing message is tried again; None: for ever."""
    dead_letters: bool = False
    """What is given up is published to a dead-letter topic; otherwise it is dropped, and counted."""
    isolate: bool = False
    """A sink's: the last attempt writes each message alone, so that only those at fault are dead-lettered."""
    backoff_s: float = 0.1
    backoff_max_s: float = 30.0

    @property
    def stops_at_failure(self) -> bool:
        """Whether the user process must not go on after a failure: it will be tried again, and order counts."""
        return self.ordered and (self.retries != 0 or self.isolate)

    def delay_s(self, failures: int) -> float:
        """How long to wait after so many failures."""
        return min(self.backoff_s * 2.0 ** min(failures - 1, 30), self.backoff_max_s)


@dataclass(frozen=True, slots=True)
class Marks:
    """What an earlier host had committed: the highest indices of this input that results and dead letters have."""

    results: Mapping[int, int] = field(default_factory=dict)
    """By partition of the output."""
    dead_letters: int = -1

    @property
    def committed(self) -> int:
        """Everything that came of messages up to this index is stored."""
        return max(min(self.results.values(), default=-1), self.dead_letters)


@dataclass(frozen=True, slots=True)
class Arrival:
    """An entry as it was received."""

    position: Position
    count: int
    first_index: int = -1
    acknowledged: frozenset[int] = frozenset()
    """Ordinals of its messages that were acknowledged before."""


@dataclass(frozen=True, slots=True)
class Output(Generic[P]):
    """Results for one partition of the output topic, one batch."""

    route: int
    ordinals: Sequence[int]
    payload: P
    after_failures: int = 0


@dataclass(frozen=True, slots=True)
class Fault:
    """A message that failed."""

    ordinal: int
    error: str
    traceback: str = ""
    final: bool = False
    """Trying again is pointless."""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[P]):
    """What became of a run."""

    outputs: Sequence[Output[P]] = ()
    faults: Sequence[Fault] = ()
    ran_through: int = 1 << 31
    """An ordered input stops at a failure: what lies at or above this was not run."""


# Effects


@dataclass(frozen=True, slots=True)
class Run:
    """Give the entry to user code. `ordinals` empty: all of it."""

    position: Position
    generation: int
    ordinals: tuple[int, ...] = ()
    isolate: bool = False
    alone: bool = False
    """Apart from others: a sink writes it in a batch of its own, a function's results are sent before and after it."""


@dataclass(frozen=True, slots=True)
class Publish(Generic[P]):
    """Publish to the output; answer with `stored(token)`."""

    token: int
    position: Position
    output: Output[P]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Publish the message to the dead-letter topic; answer with `stored(token)`."""

    token: int
    position: Position
    fault: Fault


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Acknowledge the whole entry."""

    position: Position


@dataclass(frozen=True, slots=True)
class Forget:
    """The entry is done with and its bytes may go. Comes last."""

    position: Position


Effect: TypeAlias = Run | Publish[P] | DeadLetter | Acknowledge | Forget


class _State(Enum):
    WAITING = auto()
    """For its turn, or for the time to try again."""
    RUNNING = auto()
    RAN = auto()
    """All of its messages were run; what came of them may not be stored yet."""


@dataclass(slots=True)
class _Entry:
    arrival: Arrival
    pending: Sequence[int]
    """Ordinals still to be run, ascending."""
    state: _State = _State.WAITING
    due: float = 0.0
    generation: int = 0
    attempts: dict[int, int] = field(default_factory=dict)
    losses: int = 0
    running: tuple[int, ...] = ()
    careful: bool = False
    """One message at a time: the process died with this entry in hand."""
    isolate: bool = False
    alone: bool = False
    """It failed, or was in hand when the process died: kept apart, so that it drags no others along, nor they it."""
    unstored: int = 0
    """Results, dead letters and side publishes without a receipt."""
    unissued: int = 0
    """Results and dead letters that wait for their turn to be published."""
    open_acks: set[int] = field(default_factory=set)
    """MANUAL: ordinals user code has not acknowledged."""


class Delivery(Generic[P]):
    """The guarantees for one input topic."""

    def __init__(self, policy: Policy, marks: Marks | None = None) -> None:
        self._policy = policy
        self._marks = marks or Marks()
        self._entries: dict[Position, _Entry] = {}
        self._waiting: dict[Position, _Entry] = {}
        """Those of them whose turn, or time to try again, has not come."""
        self._careful_running: Position | None = None
        self._generation = 0
        self._tokens = 0
        self._ready = False
        """Whether there is a user process."""
        self._received_through = -1
        self._issued: dict[int, tuple[Position, bool]] = {}
        """Token → its entry, and whether it is a dead letter."""
        self._letters_issued = 0
        self._queue: deque[tuple[Position, Output[P] | Fault]] = deque()
        """What waits to be published."""
        self.skipped = 0
        """Messages not run because their results were there already."""
        self.dropped = 0
        """Messages given up without a dead letter."""

    # What the shell asks

    @property
    def outstanding(self) -> int:
        """Entries received and not done with."""
        return len(self._entries)

    @property
    def idle(self) -> bool:
        """Whether nothing is left to do."""
        return not self._entries and not self._issued

    @property
    def marks(self) -> Marks:
        return self._marks

    def next_due(self) -> float | None:
        """When `wake` should be called next; None: there is nothing to wait for."""
        if not self._ready:
            return None
        if self._policy.ordered:
            due = self._entries[min(self._waiting)].due if self._waiting else 0.0
            return due if due > 0 else None
        return min((entry.due for entry in self._waiting.values() if entry.due > 0), default=None)

    # What the shell reports

    def received(self, arrival: Arrival) -> list[Effect[P]]:
        """An entry came. One that is already in hand (the consumer reconnected) is left alone."""
        if arrival.position in self._entries:
            return []
        pending: Sequence[int] = range(arrival.count)
        if self._policy.guarantee is Guarantee.EFFECTIVELY_ONCE:
            # Up to there everything is stored, or was in hand before and its acknowledgement got lost.
            done = max(self._marks.committed, self._received_through)
            pending = range(min(max(0, done + 1 - arrival.first_index), arrival.count), arrival.count)
            self.skipped += arrival.count - len(pending)
            self._received_through = max(self._received_through, arrival.first_index + arrival.count - 1)
        if arrival.acknowledged:
            pending = [o for o in pending if o not in arrival.acknowledged]
        if not pending:
            return [Acknowledge(arrival.position), Forget(arrival.position)]
        entry = _Entry(arrival, pending)
        self._entries[arrival.position] = self._waiting[arrival.position] = entry
        effects: list[Effect[P]] = []
        if self._policy.guarantee is Guarantee.ATMOST_ONCE:
            effects.append(Acknowledge(arrival.position))
        elif self._policy.guarantee is Guarantee.MANUAL:
            entry.open_acks = set(pending)
        return effects + self._start(0.0)

    def ran(self, position: Position, generation: int, outcome: Outcome[P], now: float) -> list[Effect[P]]:
        """User code is through with a run, or stopped at a failure."""
        entry = self._entries.get(position)
        if entry is None or entry.state is not _State.RUNNING or generation != entry.generation:
            return []
        entry.losses = 0
        if self._careful_running == position:
            self._careful_running = None
        retry, final = self._judge(entry, outcome.faults)
        again = {fault.ordinal for fault in retry}
        if (
            not again
            and len(entry.running) in (0, len(entry.pending))
            and outcome.ran_through > entry.pending[-1]
        ):
            entry.pending = ()  # All of it, as nearly always.
        else:
            done = {o for o in entry.running or entry.pending if o < outcome.ran_through}
            entry.pending = [o for o in entry.pending if o not in done or o in again]
        entry.running = ()
        self._enqueue(position, entry, outcome.outputs, outcome.faults, final)
        if not entry.pending:
            entry.state = _State.RAN
        else:
            delay_s = self._policy.delay_s(max(entry.attempts[o] for o in again)) if again else 0.0
            self._wait(position, entry, now + delay_s if again else 0.0)
        if self._policy.ordered and (entry.pending or (outcome.faults and self._policy.stops_at_failure)):
            self._go_back(position)
        return self._issue() + self._finish(position) + self._start(now)

    def stored(self, token: int) -> list[Effect[P]]:
        """A receipt came."""
        issued = self._issued.pop(token, None)
        if issued is None:
            return []
        position, letter = issued
        self._letters_issued -= letter
        self._entries[position].unstored -= 1
        return self._issue() + self._finish(position)

    def side_publish_began(self, position: Position) -> None:
        """`context.publish` was called for the entry: it is acknowledged only after that is stored."""
        entry = self._entries.get(position)
        if entry is not None:
            entry.unstored += 1

    def side_publish_stored(self, position: Position) -> list[Effect[P]]:
        entry = self._entries.get(position)
        if entry is None:
            return []
        entry.unstored -= 1
        return self._finish(position)

    def acknowledged_by_user(self, position: Position, ordinal: int) -> list[Effect[P]]:
        """`context.ack`, in a MANUAL function. `ordinal` -1: the whole entry."""
        entry = self._entries.get(position)
        if entry is None:
            return []
        entry.open_acks -= {ordinal} if ordinal >= 0 else set(entry.open_acks)
        return self._finish(position)

    def process_ready(self, now: float) -> list[Effect[P]]:
        """There is a user process, with nothing in hand."""
        self._ready = True
        return self._start(now)

    def process_lost(self, suspect: Position | None, reason: str) -> list[Effect[P]]:
        """The user process is gone; what it had in hand runs again in the next one.

        Args:
            suspect: the entry it was at, if that is one of this input.
            reason: for the dead letter, should it come to that.
        """
        self._ready = False
        self._careful_running = None
        self._generation += 1
        effects: list[Effect[P]] = []
        for position, entry in list(self._entries.items()):
            if entry.state is not _State.RUNNING:
                continue
            self._wait(position, entry, 0.0)
            entry.alone = True
            alone = entry.running[0] if entry.careful and entry.running else None
            entry.running = ()
            if self._policy.guarantee is Guarantee.ATMOST_ONCE:
                # Acknowledged long ago, and nobody knows how far it got: it is not tried twice.
                self.dropped += len(entry.pending)
                entry.pending = ()
                self._has_run(position, entry)
                effects += self._finish(position)
            elif position == suspect:
                entry.careful = True
                effects += self._blame(position, entry, alone, reason)
        return effects

    def wake(self, now: float) -> list[Effect[P]]:
        """Run what is due."""
        return self._start(now)

    # Decisions

    def _judge(self, entry: _Entry, faults: Sequence[Fault]) -> tuple[list[Fault], list[Fault]]:
        """Which failures are tried again, and which are final."""
        retry: list[Fault] = []
        final: list[Fault] = []
        limit = self._policy.retries
        if self._policy.guarantee is Guarantee.ATMOST_ONCE:
            return [], list(faults)
        for fault in faults:
            attempts = entry.attempts[fault.ordinal] = entry.attempts.get(fault.ordinal, 0) + 1
            if fault.final or (
                limit is not None and attempts > limit and (entry.isolate or not self._policy.isolate)
            ):
                final.append(fault)
            else:
                retry.append(fault)
        entry.alone = entry.alone or (self._policy.isolate and bool(retry))
        if self._policy.isolate and limit is not None:
            entry.isolate = any(entry.attempts[fault.ordinal] > limit for fault in retry)
        return retry, final

    def _blame(self, position: Position, entry: _Entry, ordinal: int | None, reason: str) -> list[Effect[P]]:
        """The process died on one message alone. Once is bad luck; always the same one is its fault."""
        if ordinal is None:
            entry.losses = 0
            return []
        entry.losses += 1
        limit = self._policy.retries
        if limit is None or entry.losses < max(LOSSES_TO_BLAME, limit + 1):
            return []
        entry.losses = 0
        entry.pending = [other for other in entry.pending if other != ordinal]
        fault = Fault(ordinal, f"the user process died of this message: {reason}", final=True)
        self._enqueue(position, entry, (), (fault,), [fault])
        if not entry.pending:
            self._has_run(position, entry)
        return self._issue() + self._finish(position)

    def _enqueue(
        self,
        position: Position,
        entry: _Entry,
        outputs: Sequence[Output[P]],
        faults: Sequence[Fault],
        final: Sequence[Fault],
    ) -> None:
        """Line up what came of a run: results, and dead letters between them."""
        remaining = deque(outputs)
        given_up = {fault.ordinal for fault in final}
        for number, fault in enumerate(faults):
            while remaining and remaining[0].after_failures <= number:
                self._line_up(position, entry, remaining.popleft())
            if fault.ordinal in given_up:
                entry.open_acks.discard(fault.ordinal)
                if self._policy.dead_letters:
                    self._line_up(position, entry, fault)
                else:
                    self.dropped += 1
        for output in remaining:
            self._line_up(position, entry, output)

    def _line_up(self, position: Position, entry: _Entry, step: Output[P] | Fault) -> None:
        if isinstance(step, Output) and self._policy.guarantee is Guarantee.EFFECTIVELY_ONCE:
            mark = self._marks.results.get(step.route, -1)
            if entry.arrival.first_index + step.ordinals[-1] <= mark:
                self.skipped += len(step.ordinals)
                return
        entry.unissued += 1
        self._queue.append((position, step))

    def _issue(self) -> list[Effect[P]]:
        """Publish what may be published now."""
        effects: list[Effect[P]] = []
        while self._queue:
            position, step = self._queue[0]
            letter = isinstance(step, Fault)
            others = len(self._issued) - self._letters_issued if letter else self._letters_issued
            if self._policy.ordered and others:
                break  # The other topic's receipts first: what is stored must never run ahead.
            self._queue.popleft()
            self._tokens += 1
            self._issued[self._tokens] = (position, letter)
            self._letters_issued += letter
            entry = self._entries[position]
            entry.unissued -= 1
            entry.unstored += 1
            if isinstance(step, Fault):
                effects.append(DeadLetter(self._tokens, position, step))
            else:
                effects.append(Publish(self._tokens, position, step))
        return effects

    def _finish(self, position: Position) -> list[Effect[P]]:
        """Acknowledge the entry if nothing is left to do for it."""
        entry = self._entries.get(position)
        if (
            entry is None
            or entry.state is not _State.RAN
            or entry.unstored
            or entry.unissued
            or entry.open_acks
        ):
            return []
        del self._entries[position]
        if self._policy.guarantee is Guarantee.ATMOST_ONCE:
            return [Forget(position)]
        return [Acknowledge(position), Forget(position)]

    def _go_back(self, position: Position) -> None:
        """An ordered input failed at `position`: what the process has after it will be answered as stale."""
        self._generation += 1
        for other, entry in self._entries.items():
            if entry.state is _State.RUNNING and other != position:
                entry.running = ()
                self._wait(other, entry, 0.0)

    def _wait(self, position: Position, entry: _Entry, due: float) -> None:
        entry.state = _State.WAITING
        entry.due = due
        self._waiting[position] = entry
        if self._careful_running == position:
            self._careful_running = None

    def _has_run(self, position: Position, entry: _Entry) -> None:
        entry.state = _State.RAN
        self._waiting.pop(position, None)

    def _start(self, now: float) -> list[Effect[P]]:
        """Run what is due; an ordered input only up to the first entry that must wait."""
        effects: list[Effect[P]] = []
        if (
            not self._ready
            or not self._waiting
            or (self._policy.ordered and self._careful_running is not None)
        ):
            return effects
        for position in sorted(self._waiting) if self._policy.ordered else list(self._waiting):
            entry = self._waiting[position]
            if entry.due <= now:
                effects.append(self._run(position, entry))
                if self._policy.ordered and entry.careful:
                    break
            elif self._policy.ordered:
                break
        return effects

    def _run(self, position: Position, entry: _Entry) -> Run:
        del self._waiting[position]
        entry.state = _State.RUNNING
        entry.generation = self._generation
        whole = len(entry.pending) == entry.arrival.count
        if entry.careful:
            entry.running = (entry.pending[0],)
            self._careful_running = position
        elif not whole:
            entry.running = tuple(entry.pending)
        return Run(position, self._generation, entry.running, entry.isolate, entry.alone)
