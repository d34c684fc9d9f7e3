"""What a simulated bookie takes of its machine: threads that are steps of the loop, and an index in memory."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, cast

from magnetar.bookie.entry_log import Location, StoredRecord
from magnetar.bookie.index import EntryIndex, IndexState
from magnetar.bookie.journal import Journal
from magnetar.bookie.machine import Machine
from magnetar.bookie.record import Pending
from magnetar.bookie.segments import Segments
from magnetar.simulation.disk import SimulatedDisk
from magnetar.simulation.process_loop import Process, ProcessDied, ProcessLoop, SimulatedPool, inside

_NO_ROOM_PAUSE_S = 0.5


class StoredIndex:
    """What the index's files hold: a power cut takes back the last changes, those that no sync has covered."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self.state: IndexState | None = None
        self.ledgers: dict[int, dict[int, Location]] = {}
        self.undo: list[Callable[[], None]] = []

    def cut_power(self, *, worst: bool) -> None:
        keep = 0 if worst else self._dice.randint(0, len(self.undo))
        for taken_back in reversed(self.undo[keep:]):
            taken_back()
        self.undo.clear()

    def clear(self) -> None:
        self.state = None
        self.ledgers = {}
        self.undo.clear()


class MemoryIndex(EntryIndex):
    """The index's promises without its files."""

    def __init__(self, path: Path, stored: StoredIndex, forgets: Callable[[int], None]) -> None:
        self.path = path
        self._stored = stored
        self._forgets = forgets
        self.state = stored.state

    def get(self, ledger_id: int, entry_id: int) -> Location | None:
        entries = self._stored.ledgers.get(ledger_id)
        return None if entries is None else entries.get(entry_id)

    def last(self, ledger_id: int) -> tuple[int, Location] | None:
        entries = self._stored.ledgers.get(ledger_id)
        if not entries:
            return None
        last = max(entries)
        return last, entries[last]

    def entry_ids(self, ledger_id: int) -> Iterator[int]:
        return iter(sorted(self._stored.ledgers.get(ledger_id, ())))

    def places(self) -> Iterator[StoredRecord]:
        for ledger_id, entries in sorted(self._stored.ledgers.items()):
            for entry_id, place in sorted(entries.items()):
                yield StoredRecord(ledger_id, entry_id, place)

    def put(self, records: Sequence[StoredRecord], state: IndexState) -> None:
        stored = self._stored
        for ledger_id, entry_id, place in records:
            entries = stored.ledgers.setdefault(ledger_id, {})
            stored.undo.append(_taking_back(entries, entry_id, entries.get(entry_id)))
            entries[entry_id] = place
        self.put_state(state)

    def put_state(self, state: IndexState) -> None:
        stored, old = self._stored, self._stored.state

        def taken_back() -> None:
            stored.state = old

        stored.undo.append(taken_back)
        stored.state = self.state = state

    def delete_ledgers(self, ledger_ids: Iterable[int]) -> None:
        stored = self._stored
        for ledger_id in ledger_ids:
            self._forgets(ledger_id)
            old = stored.ledgers.pop(ledger_id, None)
            if old is not None:
                stored.undo.append(_putting_back(stored, ledger_id, old))

    def sync(self) -> None:
        self._stored.undo.clear()

    def close(self) -> None:
        """Nothing is open."""


class InlineJournal(Journal):
    """The journal whose writer thread is a step of the loop: a group is what came while the last one was synced."""

    def __init__(
        self,
        segments: Segments,
        *,
        on_failure: Callable[[BaseException], object],
        takes_s: Callable[[], float],
    ) -> None:
        super().__init__(segments, on_failure=on_failure)
        self._takes_s = takes_s
        self._wake = cast(Any, self)
        process = inside()
        assert process is not None, "a journal belongs to a process"
        self._process: Process = process

    def _start_writing(self) -> None:
        self._sleeping = True

    def put(self, item: None) -> None:
        """Wake the writer."""
        self._process.call_later(self._takes_s(), self._write_group)

    def _write_group(self) -> None:
        group = list(self._queue)
        self._queue.clear()
        if group:
            self._write(group)
        else:
            self._sleeping = True  # A stop has written what was queued.

    def _write(self, group: list[Pending]) -> None:
        try:
            if not self._try_to_commit(group):
                if self._stopping:
                    self._sleeping = True
                else:
                    self._process.call_later(_NO_ROOM_PAUSE_S, self._write, group)
                return
        except ProcessDied:
            raise
        except BaseException as error:
            self._on_failure(error)
            return
        self._tell(group)
        if self._queue:
            self.put(None)
        else:
            self._sleeping = True

    async def stop(self) -> None:
        self._thread = cast(Any, _Job(self._run))  # What is left is written as the thread would write it.
        await super().stop()

    def _prepare_next(self) -> None:
        if not self._segments.has_spare:
            job = _Job(self._prepare)
            self._preparing = cast(Any, job)
            self._process.call_later(self._takes_s(), job.join)


class _Job:
    """A thread with one thing to do."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work: Callable[[], None] | None = work

    def join(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            work()


class _NoLock:
    def release(self) -> None:
        """Nobody else could have it: a machine runs one process at a time."""


def simulated_machine(
    loop: ProcessLoop,
    disk: SimulatedDisk,
    index: StoredIndex,
    dice: random.Random,
    forgets: Callable[[int], None],
) -> Machine:
    """The machine that `disk` and `index` are in. `forgets` is told of each ledger that leaves the index."""

    def takes_s() -> float:
        return disk.takes_s(loop.now)

    def journal(segments: Segments, *, on_failure: Callable[[BaseException], object]) -> Journal:
        return InlineJournal(segments, on_failure=on_failure, takes_s=takes_s)

    return Machine(
        pool=lambda workers, name: cast(Executor, SimulatedPool(workers, takes_s)),
        journal=journal,
        open_index=lambda path: MemoryIndex(path, index, forgets),
        remove_index=lambda path: index.clear(),
        lock=lambda path: _NoLock(),
        dice=dice,
    )


def _taking_back(entries: dict[int, Location], entry_id: int, old: Location | None) -> Callable[[], None]:
    def taken_back() -> None:
        if old is None:
            entries.pop(entry_id, None)
        else:
            entries[entry_id] = old

    return taken_back


def _putting_back(stored: StoredIndex, ledger_id: int, old: dict[int, Location]) -> Callable[[], None]:
    def put_back() -> None:
        stored.ledgers[ledger_id] = old

    return put_back
