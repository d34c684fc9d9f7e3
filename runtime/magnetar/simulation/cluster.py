"""What simulated machines share: one loop, the weather on the ways between them, the metadata's ensemble, one judge."""

from __future__ import annotations

import random
from contextvars import Context
from dataclasses import dataclass
from typing import TYPE_CHECKING

from magnetar.metadata.memory import MemoryEnsemble
from magnetar.simulation.judge import History, Judge
from magnetar.simulation.loop import VirtualClock
from magnetar.simulation.process_loop import ProcessLoop

if TYPE_CHECKING:
    from magnetar.simulation.bookie_node import BookieNode


@dataclass(slots=True)
class Weather:
    """How likely things go wrong on the ways, for one message. It changes; at the end it clears up."""

    drop: float = 0.0
    linger: float = 0.0
    """Arrives long after its sender has given up on it."""
    duplicate: float = 0.0
    corrupt: float = 0.0
    delay_s: float = 0.002
    linger_s: float = 3.0
    lost_request: float = 0.0
    """Of the metadata store: nothing has happened."""
    lost_answer: float = 0.0
    """Of the metadata store: it has happened, and nobody is told."""
    late: float = 0.0
    """Of the metadata store: nobody is told, and it happens later."""
    partial_listing: float = 0.0
    stale_watch_s: float = 0.05


class Cluster:
    """What all simulated machines share."""

    def __init__(self, seed: int, loop: ProcessLoop, dice: random.Random, *, kept: bool) -> None:
        self.loop = loop
        self.clock = VirtualClock(loop)
        self.dice = dice
        self.weather = Weather()
        self.history = History(loop.time, kept=kept)
        self.judge = Judge(seed, loop.time, self.history)
        self.ensemble = MemoryEnsemble()
        self.store_down = False
        self.cut: set[tuple[str, str]] = set()
        """One-way: what the first sends does not reach the second."""
        self.dark_after_fence = ""
        """The bookie whose machine loses power in the moment in which it next answers a fence."""
        self.nodes: dict[str, BookieNode] = {}
        self.outside = Context()
        """Of what belongs to no process: the network, the store, those who repair machines."""

    def passes(self, sender: str, receiver: str) -> bool:
        weather = self.weather
        if self.cut and (sender, receiver) in self.cut:
            return False
        return not (weather.drop and self.dice.random() < weather.drop)

    def delay(self) -> float:
        weather = self.weather
        delay_s = self.dice.random() * weather.delay_s
        if weather.linger and self.dice.random() < weather.linger:
            delay_s += self.dice.random() * weather.linger_s
        return delay_s
