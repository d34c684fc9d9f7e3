"""Metrics of the user's own: gathered here, told to the host now and then."""

from __future__ import annotations

import threading
import time

from magnetar.functions.process.channel import Channel
from magnetar.functions.process.wire import ToHost, json_frame

REPORT_EVERY_S = 1.0
NAMES_MAX = 1000


class UserMetrics:
    """Sum and count of each metric since the last report."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, list[float]] = {}
        self._reported_at = 0.0

    def record(self, name: str, value: float) -> None:
        number = float(value)
        with self._lock:
            entry = self._values.get(name)
            if entry is None:
                if len(self._values) >= NAMES_MAX:
                    raise ValueError(f"more than {NAMES_MAX} metrics: do not put values into metric names")
                entry = self._values[name] = [0.0, 0.0]
            entry[0] += number
            entry[1] += 1

    def report(self, channel: Channel, *, at_once: bool) -> None:
        """Send what there is; unless `at_once`, at most every second. Raises HostGone."""
        if not self._values:
            return
        now = time.monotonic()
        if not at_once and now - self._reported_at < REPORT_EVERY_S:
            return
        with self._lock:
            values, self._values = self._values, {}
        self._reported_at = now
        channel.send(json_frame(ToHost.METRICS, values))
