"""Whether a bookie takes ordinary adds, and why not: its disk, an operator's wish, lost data."""

from __future__ import annotations

from collections.abc import Callable

from magnetar.bookie.space import Fullness, Watermarks
from magnetar.environment.logs import get_logger

_NEWS = 0.02
"""By this share of the disk free space must change before others are told."""

log = get_logger("magnetar.bookie")


class Mode:
    """Belongs to the loop."""

    def __init__(
        self,
        watermarks: Watermarks,
        *,
        on_read_only: Callable[[bool], None],
        on_news: Callable[[], None],
        on_filling: Callable[[], None],
    ) -> None:
        """
        Args:
            on_read_only: told when ordinary adds begin to be refused or taken again.
            on_news: called when free space has changed by much.
            on_filling: called when the disk has become fuller by a watermark.
        """
        self._watermarks = watermarks
        self._on_read_only = on_read_only
        self._on_news = on_news
        self._on_filling = on_filling
        self.reasons: dict[str, str] = {}
        """Why no ordinary adds are taken, by cause: `space`, `wanted`, `limbo`."""
        self.fullness = Fullness.FINE
        self.free_bytes = 0
        self.total_bytes = 0

    def set(self, cause: str, reason: str | None) -> None:
        """Take no ordinary adds while any cause has a reason not to; None takes this one's back."""
        before = bool(self.reasons)
        if reason is None:
            self.reasons.pop(cause, None)
        else:
            self.reasons[cause] = reason
        if bool(self.reasons) != before:
            if reason is not None:
                log.warning("bookie.read_only", cause=cause, reason=reason)
            else:
                log.info("bookie.writable")
            self._on_read_only(not before)

    def look(self, free_bytes: int | None, failing: str | None) -> None:
        """What was found out of late: free space, unless it was not asked for, and why storage cannot be written."""
        if free_bytes is not None:
            news = abs(free_bytes - self.free_bytes) > self.total_bytes * _NEWS
            self.free_bytes = free_bytes
            before = self.fullness
            self.fullness, why = self._watermarks.judge(before, free_bytes, self.total_bytes)
            if self.fullness is not before:
                log.info("bookie.disk_usage_changed", fullness=self.fullness.name, reason=why)
            self._why = why
            if self.fullness > before:
                self._on_filling()
            if news:
                self._on_news()
        self.set("space", failing or (self._why if self.fullness >= Fullness.FULL else None))

    _why = ""
