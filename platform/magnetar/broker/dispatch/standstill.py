"""Whether a subscription that should move stands still, and what to do about it. Pure.

Nothing should ever stand still. But a wake that was lost costs a consumer hours, and a look every few seconds costs nothing.
"""

from __future__ import annotations

from enum import Enum, auto


class Remedy(Enum):
    """What a look at a subscription came to."""

    NONE = auto()
    WAKE = auto()
    """It has stood still for long: somebody may have forgotten to wake it."""
    BEGIN_ANEW = auto()
    """Waking did not help: let its consumers go, who come back and are served from the first unacknowledged entry."""


class Standstill:
    """Remembers since when a subscription has not moved although it could."""

    __slots__ = ("_moved", "_patience_s", "_since", "_woken")

    def __init__(self, patience_s: float) -> None:
        """0: never impatient."""
        self._patience_s = patience_s
        self._since: float | None = None
        self._moved: object = None
        self._woken = False

    def since(self, now: float) -> float:
        """For how long it has stood still, in seconds."""
        return 0.0 if self._since is None else now - self._since

    def look(self, *, could_move: bool, moved: object, now: float) -> Remedy:
        """`could_move`: somebody wants what is there; `moved` is another whenever something was done about it."""
        if not could_move or moved != self._moved or self._since is None:
            self._moved = moved
            self._since = now if could_move else None
            self._woken = False
            return Remedy.NONE
        if not self._patience_s or now - self._since < self._patience_s:
            return Remedy.NONE
        self._since = now
        if not self._woken:
            self._woken = True
            return Remedy.WAKE
        self._woken = False
        return Remedy.BEGIN_ANEW
