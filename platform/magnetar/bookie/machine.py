"""What a bookie takes of the machine besides its disk: threads, an index, the lock on its directory, randomness.

Handed in, so that the same bookie also runs in a simulation, where a thread is a callback at a virtual time and nothing
is drawn that a seed does not know of.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from magnetar.bookie.index import EntryIndex, remove_index
from magnetar.bookie.journal import Journal
from magnetar.bookie.segments import Segments
from magnetar.environment.directory_lock import DirectoryLock


class Lock(Protocol):
    def release(self) -> None: ...


class NewJournal(Protocol):
    def __call__(self, segments: Segments, *, on_failure: Callable[[BaseException], object]) -> Journal: ...


def _thread_pool(workers: int, name: str) -> Executor:
    return ThreadPoolExecutor(workers, thread_name_prefix=name)


@dataclass(frozen=True, slots=True)
class Machine:
    pool: Callable[[int, str], Executor] = _thread_pool
    """So many threads of that name. One thread: what is submitted is done in order."""
    journal: NewJournal = Journal
    """One that knows other threads than the machine's is a subclass."""
    open_index: Callable[[Path], EntryIndex] = EntryIndex
    remove_index: Callable[[Path], None] = remove_index
    lock: Callable[[Path], Lock] = DirectoryLock
    dice: random.Random = field(default_factory=random.SystemRandom)
    """For identities and salts."""


THIS_MACHINE = Machine()
