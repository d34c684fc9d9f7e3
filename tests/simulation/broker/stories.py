"""Random lives told step by step, cut down to the few that matter when one goes wrong.

`python -m tests.simulation.broker.stories subscription --seeds 100000 [--from N] [--fault NAME]`

A step is an operation and a seed of its own, so that what is left of a story does the same without the rest.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

Step = tuple[str, int]


class Life(Protocol):
    """One life: made from a seed, it draws its steps, and lives through them."""

    lines: list[str]
    """What happened, for people."""

    def draw(self) -> list[Step]: ...

    def live(self, steps: Sequence[Step]) -> None:
        """
        Raises:
            Exception: something is wrong.
        """
        ...


@dataclass(slots=True)
class Told:
    """A life that was lived."""

    seed: int
    steps: list[Step]
    wrong: str = ""
    lines: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        story = "\n".join(f"  {line}" for line in self.lines)
        return f"seed {self.seed}: {self.wrong}\n{story}"


def tell(begin: Callable[[int], Life], seed: int, steps: Sequence[Step] | None = None) -> Told:
    """Live a life, or a part of it."""
    life = begin(seed)
    chosen = list(life.draw() if steps is None else steps)
    try:
        life.live(chosen)
    except Exception as error:
        return Told(seed, chosen, f"{type(error).__name__}: {error}", life.lines)
    return Told(seed, chosen, "", life.lines)


def shrink(begin: Callable[[int], Life], told: Told, *, attempts: int = 300) -> Told:
    """The shortest story found that still goes wrong."""
    size = max(1, len(told.steps) // 2)
    while attempts > 0:
        at, shorter = 0, False
        while at < len(told.steps) and attempts > 0:
            attempts -= 1
            tried = tell(begin, told.seed, told.steps[:at] + told.steps[at + size :])
            if tried.wrong:
                told, shorter = tried, True
            else:
                at += size
        if size == 1 and not shorter:
            break
        size = max(1, size // 2)
    return told


def check(begin: Callable[[int], Life], seeds: Sequence[int]) -> None:
    """
    Raises:
        AssertionError: a life went wrong; with its shortest story.
    """
    for seed in seeds:
        told = tell(begin, seed)
        if told.wrong:
            raise AssertionError(str(shrink(begin, told)))


def first_wrong(begin: Callable[[int], Life], seeds: Sequence[int]) -> Told | None:
    """The first life that goes wrong, if any."""
    return next((told for told in (tell(begin, seed) for seed in seeds) if told.wrong), None)


def steps_of(dice: random.Random, weights: dict[str, float], number: int) -> list[Step]:
    names = dice.choices(list(weights), list(weights.values()), k=number)
    return [(name, dice.getrandbits(48)) for name in names]


def main(arguments: Sequence[str] | None = None) -> int:
    from tests.simulation.broker.faults import FAULTS, faulty
    from tests.simulation.broker.lives import LIVES

    parser = argparse.ArgumentParser(description="Random lives of broker objects, beside a model.")
    parser.add_argument("life", choices=sorted(LIVES))
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--fault", choices=sorted(FAULTS), default="")
    parser.add_argument("--keep-going", action="store_true")
    chosen = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    begin, wrong, began = LIVES[chosen.life], 0, time.monotonic()
    with faulty(chosen.fault):
        for seed in range(chosen.first, chosen.first + chosen.seeds):
            told = tell(begin, seed)
            if told.wrong:
                wrong += 1
                sys.stdout.write(f"{shrink(begin, told)}\n")
                sys.stdout.flush()
                if not chosen.keep_going:
                    break
            if (seed + 1) % 1000 == 0:
                sys.stdout.write(f"{seed + 1 - chosen.first} lives, {wrong} wrong\n")
                sys.stdout.flush()
    lived = seed - chosen.first + 1
    sys.stdout.write(f"{lived} lives, {wrong} wrong, {time.monotonic() - began:.1f} s\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
