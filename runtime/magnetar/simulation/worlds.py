"""The worlds there are, and running many seeds of them."""

from __future__ import annotations

import logging
import multiprocessing
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from magnetar.simulation.judge import InvariantBroken

WORLDS = ("storage", "ledger", "thin", "race", "log")
"""`thin`: ledgers in which most of a write set may know nothing of an acknowledged entry. `race`: a writer and a recovery
whose messages overtake each other."""


@dataclass(frozen=True, slots=True)
class Told:
    """How one seed of one world went."""

    world: str
    seed: int
    broken: str = ""
    """The invariant's name; "error" for what should not happen in a simulator; "" where all held."""
    what: str = ""
    digest: str = ""
    appended: int = 0
    met: Counter[str] = field(default_factory=Counter)
    crashes: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return not self.broken


def tell(world: str, seed: int, *, mutation: str = "") -> Told:
    """Run one seed of one world, with one protocol mutation if a name is given."""
    from magnetar.simulation.mutations import mutated

    started = time.process_time()
    with mutated(mutation):
        told = _tell_storage(seed) if world == "storage" else _tell_older(world, seed)
    return Told(*told, seconds=time.process_time() - started)


def _tell_storage(seed: int) -> tuple[str, int, str, str, str, int, Counter[str], Counter[str]]:
    from magnetar.simulation.storage_world import StorageWorld

    world = StorageWorld(seed)
    try:
        outcome = world.run()
    except InvariantBroken as broken:
        digest = world.cluster.history.digest
        return "storage", seed, broken.name, broken.what, digest, 0, Counter(), Counter()
    except Exception as error:
        return "storage", seed, "error", f"{type(error).__name__}: {error}", "", 0, Counter(), Counter()
    return "storage", seed, "", "", outcome.digest, outcome.appended, outcome.met, outcome.crashes


def _tell_older(world: str, seed: int) -> tuple[str, int, str, str, str, int, Counter[str], Counter[str]]:
    import hashlib

    from magnetar.simulation import ledger_world
    from magnetar.simulation.log_world import LogOutcome, LogWorld

    try:
        if world == "log":
            outcome: LogOutcome | ledger_world.Outcome = LogWorld(seed).run()
        else:
            shapes = {"thin": ledger_world.THIN_SHAPES, "race": ledger_world.RACING_SHAPES}.get(
                world, ledger_world.SHAPES
            )
            outcome = ledger_world.LedgerWorld(seed, shapes=shapes, racing=world == "race").run()
    except ledger_world.InvariantBroken as broken:
        found = re.search(r"\((I\d+)", str(broken))
        name = found.group(1) if found else "unnamed"
        return world, seed, name, str(broken), "", 0, Counter(), Counter()
    except Exception as error:
        return world, seed, "error", f"{type(error).__name__}: {error}", "", 0, Counter(), Counter()
    digest = hashlib.sha256(repr(outcome).encode()).hexdigest()[:32]
    return world, seed, "", "", digest, outcome.appended, Counter(), Counter()


def story(seed: int, *, mutation: str = "", every_message: bool = False) -> tuple[list[str], str]:
    """The history of a seed of the storage world as lines to read, and its digest."""
    from magnetar.simulation.mutations import mutated
    from magnetar.simulation.storage_world import StorageWorld

    world = StorageWorld(seed, kept=every_message)
    lines = world.cluster.history.lines
    with mutated(mutation):
        try:
            world.run()
        except InvariantBroken as broken:
            return [*lines, f"FAILED: {broken}"], world.cluster.history.digest
        except Exception as error:
            return [*lines, f"FAILED: {type(error).__name__}: {error}"], world.cluster.history.digest
    return [*lines, "passed"], world.cluster.history.digest


GIVEN_UP_AFTER_S = 60.0


def tell_all(
    worlds: tuple[str, ...], seeds: range, *, jobs: int, mutation: str = "", deadline: float | None = None
) -> Iterator[Told]:
    """Run seeds of all these worlds, in several processes, until they are done or the time is over.

    With a deadline a seed that is not done so long after it is named on standard error and given up.
    """
    work = ((world, seed, mutation) for seed in seeds for world in worlds)
    if jobs <= 1:
        for item in work:
            if deadline is not None and time.monotonic() >= deadline:
                return
            yield _tell_one(item)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, initializer=_quiet) as pool:
        waiting: list[tuple[tuple[str, int, str], multiprocessing.pool.AsyncResult[Told]]] = []
        for item in work:
            if deadline is not None and time.monotonic() >= deadline:
                break
            waiting.append((item, pool.apply_async(_tell_one, (item,))))
            while len(waiting) >= 2 * jobs:
                told = _wait(*waiting.pop(0), deadline)
                if told is not None:
                    yield told
        for each in waiting:
            told = _wait(*each, deadline)
            if told is not None:
                yield told


def _wait(
    item: tuple[str, int, str], result: multiprocessing.pool.AsyncResult[Told], deadline: float | None
) -> Told | None:
    if deadline is None:
        return result.get()
    try:
        return result.get(max(0.1, deadline + GIVEN_UP_AFTER_S - time.monotonic()))
    except multiprocessing.TimeoutError:
        sys.stderr.write(f"UNFINISHED {item[0]} seed {item[1]}\n")
        return None


def _quiet() -> None:
    logging.disable(logging.CRITICAL)


def _tell_one(item: tuple[str, int, str]) -> Told:
    world, seed, mutation = item
    return tell(world, seed, mutation=mutation)
