"""Until when a session's ephemerals cannot be another's. Pure: time is an argument.

The server counts a session's end from when it heard of us; we count from when we began to ask. Asking comes
before hearing, so our count runs out first, however long the answer took and wherever this process was stopped
meanwhile. Only an answer prolongs it, for without one nobody knows whether anything was heard.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sign:
    """A sign of life that was sent: on behalf of which session, and when."""

    session: str
    sent_at: float


class SessionLease:
    """One sign of life under way at most; each answered one prolongs the lease."""

    __slots__ = ("_under_way", "until")

    def __init__(self) -> None:
        self._under_way: Sign | None = None
        self.until = -math.inf

    def send(self, session: str, now: float) -> Sign | None:
        """The sign to send now; None while another is under way."""
        if self._under_way is not None:
            return None
        self._under_way = Sign(session, now)
        return self._under_way

    def overdue(self, now: float, patience_s: float) -> bool:
        """Whether the answer to a sign is so late that it should be tried by another way."""
        return self._under_way is not None and now - self._under_way.sent_at > patience_s

    def answered(self, sign: Sign, session: str, span_s: float) -> None:
        """The server has heard `sign`. What was given up, or belonged to another session, counts for nothing."""
        if sign is not self._under_way:
            return
        self._under_way = None
        if sign.session == session:
            self.until = max(self.until, sign.sent_at + span_s)

    def given_up(self, sign: Sign | None = None) -> None:
        """There will be no answer to `sign`, or to whatever is under way."""
        if sign is None or sign is self._under_way:
            self._under_way = None

    def ended(self) -> None:
        """The session is over."""
        self._under_way = None
        self.until = -math.inf
