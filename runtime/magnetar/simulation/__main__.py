"""`python -m magnetar.simulation`: run seeds, replay one, look for the seeds that catch a mutation."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter

from magnetar.simulation.mutations import MUTATIONS
from magnetar.simulation.worlds import WORLDS, Told, story, tell, tell_all

ENOUGH = 40
"""So many seeds of the storage world must have met each thing worth meeting."""
COVERED = 0.9
"""The share of the protocol's lines that enough seeds pass through."""
TO_BE_MET = ("concurrent recoveries", "fences racing appends", "unknown outcomes of compare-and-set")


def _say(line: str = "") -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m magnetar.simulation", description=__doc__)
    parser.add_argument("--world", choices=(*WORLDS, "all"), default="all")
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds, each in every world")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--seed", type=int, help="replay this one and print its history's digest")
    parser.add_argument("--minutes", type=float, help="as many seeds as fit into this time")
    parser.add_argument("--mutation", choices=sorted(MUTATIONS), default="", help="break the protocol so")
    parser.add_argument("--coverage", action="store_true", help="tell which lines the seeds pass through")
    parser.add_argument("--verbose", action="store_true", help="with --seed: every message")
    chosen = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    if chosen.seed is not None:
        return _replay(chosen)
    if chosen.mutation:
        return _hunt(chosen)
    if chosen.coverage:
        return _cover(chosen)
    return _run(chosen)


def _replay(chosen: argparse.Namespace) -> int:
    worlds = ("storage",) if chosen.world == "all" else (chosen.world,)
    if worlds == ("storage",):
        lines, digest = story(chosen.seed, mutation=chosen.mutation, every_message=chosen.verbose)
        for line in lines:
            _say(line)
        _say(f"history {digest}")
        return 0 if lines[-1] == "passed" else 1
    told = tell(chosen.world, chosen.seed, mutation=chosen.mutation)
    _say(f"{told.world} {told.seed}: {told.what or 'passed'}")
    _say(f"history {told.digest}")
    return 0 if told.passed else 1


def _hunt(chosen: argparse.Namespace) -> int:
    """Seeds that catch a mutation and pass without it."""
    mutation, caught = chosen.mutation, Counter[str]()
    worlds = (MUTATIONS[mutation].world,) if chosen.world == "all" else (chosen.world,)
    seeds = range(chosen.first, chosen.first + chosen.seeds)
    for told in tell_all(worlds, seeds, jobs=chosen.jobs, mutation=mutation):
        if told.passed:
            continue
        caught[told.broken] += 1
        _say(f"{mutation}: seed {told.seed}: {told.broken}: {told.what}")
        if told.broken in MUTATIONS[mutation].caught_by:
            plain = tell(told.world, told.seed)
            if plain.passed:
                _say(f"{mutation}: seed {told.seed} catches it by {told.broken}, and passes without it")
                return 0
            _say(f"{mutation}: seed {told.seed} fails without it: {plain.broken}: {plain.what}")
    _say(f"{mutation}: not caught by a named invariant in {chosen.seeds} seeds; {dict(caught)}")
    return 1


def _run(chosen: argparse.Namespace) -> int:
    worlds = WORLDS if chosen.world == "all" else (chosen.world,)
    started = time.monotonic()
    deadline = None if chosen.minutes is None else started + 60 * chosen.minutes
    count = 10_000_000 if deadline is not None else chosen.seeds
    passed, appended, stories = 0, 0, 0
    failed: list[Told] = []
    met, crashes = Counter[str](), Counter[str]()
    _say(f"first seed {chosen.first}, worlds {', '.join(worlds)}")
    for told in tell_all(
        worlds, range(chosen.first, chosen.first + count), jobs=chosen.jobs, deadline=deadline
    ):
        passed += told.passed
        stories += told.world == "storage"
        appended += told.appended
        met += told.met
        crashes += told.crashes
        if not told.passed:
            failed.append(told)
            _say(f"FAILED {told.world} seed {told.seed}: {told.broken}: {told.what}")
    for told in failed[:3]:
        if told.world == "storage":
            _say(f"\nThe story of seed {told.seed}:")
            for line in story(told.seed)[0]:
                _say(line)
    _say()
    if stories:
        for name in sorted({*met, *TO_BE_MET}):
            _say(f"met {name}: {met[name]}")
        for name in sorted({*crashes, *_crash_points()}):
            _say(f"crashes at {name}: {crashes[name]}")
    _say(f"appends: {appended}")
    _say(f"failed seeds: {', '.join(f'{each.world} {each.seed}' for each in failed) or 'none'}")
    _say(f"{passed} passed, {len(failed)} failed in {time.monotonic() - started:.0f} s")
    return 1 if failed or not _has_met_enough(stories, met, crashes) else 0


def _cover(chosen: argparse.Namespace) -> int:
    """Passed lines of the writer, the recovery, the journal, the auditor and the cursor."""
    from magnetar.simulation.line_coverage import LineCoverage, production_modules

    worlds = WORLDS if chosen.world == "all" else (chosen.world,)
    with LineCoverage(production_modules()) as coverage:
        for told in tell_all(worlds, range(chosen.first, chosen.first + chosen.seeds), jobs=1):
            if not told.passed:
                _say(f"FAILED {told.world} seed {told.seed}: {told.broken}: {told.what}")
    all_lines = all_passed = 0
    for path, lines, passed, missed in coverage.report():
        all_lines += lines
        all_passed += passed
        name = "/".join(path.split("/")[-2:])
        _say(f"{passed / lines:7.1%}  {name}: not passed {', '.join(map(str, missed)) or 'none'}")
    share = all_passed / all_lines
    _say(f"{share:7.1%}  of {all_lines} lines")
    return 0 if share >= COVERED else 1


def _has_met_enough(stories: int, met: Counter[str], crashes: Counter[str]) -> bool:
    if stories < ENOUGH:
        return True
    missed = [name for name in TO_BE_MET if not met[name]]
    if stories >= 10 * ENOUGH:
        missed += [f"crashes at {name}" for name in _crash_points() if not crashes[name]]
    for name in missed:
        _say(f"never met: {name}")
    return not missed


def _crash_points() -> tuple[str, ...]:
    from magnetar.simulation.troubles import (
        BOOKIE_CRASH_POINTS,
        OWNER_CRASH_POINTS,
        REPAIRER_CRASH_POINTS,
    )

    return (*BOOKIE_CRASH_POINTS, *OWNER_CRASH_POINTS, *REPAIRER_CRASH_POINTS)


if __name__ == "__main__":
    sys.exit(main())
