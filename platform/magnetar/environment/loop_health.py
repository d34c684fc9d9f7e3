"""How well the event loop breathes: its lag and the garbage collector's pauses, as plain counters."""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Any

LAG_BOUNDS_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0)


class LoopHealth:
    """Measures by asking to be called at a fixed rhythm and noting how late the call comes.

    Read the attributes whenever you like; they only grow, except `lag_max_s`, which `take_lag_max` resets.
    """

    __slots__ = (
        "_collection_began",
        "_due",
        "_handle",
        "_interval_s",
        "collections",
        "gc_pause_max_s",
        "gc_pause_s",
        "lag_counts",
        "lag_max_s",
        "lag_s",
        "samples",
    )

    def __init__(self, interval_s: float = 0.25) -> None:
        self._interval_s = interval_s
        self._handle: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._collection_began = 0.0
        self.samples = 0
        self.lag_s = 0.0
        self.lag_max_s = 0.0
        self.lag_counts = [0] * (len(LAG_BOUNDS_S) + 1)
        self.collections = 0
        self.gc_pause_s = 0.0
        self.gc_pause_max_s = 0.0

    def start(self) -> None:
        """Begin measuring the running loop."""
        gc.callbacks.append(self._on_collection)
        self._schedule(asyncio.get_running_loop())

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)

    def take_lag_max(self) -> float:
        """The worst lag since this was last asked."""
        worst, self.lag_max_s = self.lag_max_s, 0.0
        return worst

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = loop.time() + self._interval_s
        self._handle = loop.call_at(self._due, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        # uvloop counts in milliseconds, so a tick may come a moment early.
        lag = max(0.0, loop.time() - self._due)
        self.samples += 1
        self.lag_s += lag
        self.lag_max_s = max(self.lag_max_s, lag)
        slot = 0
        while slot < len(LAG_BOUNDS_S) and lag > LAG_BOUNDS_S[slot]:
            slot += 1
        self.lag_counts[slot] += 1
        self._schedule(loop)

    def _on_collection(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._collection_began = time.perf_counter()
            return
        pause = time.perf_counter() - self._collection_began
        self.collections += 1
        self.gc_pause_s += pause
        self.gc_pause_max_s = max(self.gc_pause_max_s, pause)
