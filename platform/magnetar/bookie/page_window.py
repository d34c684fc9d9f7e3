"""How much of the entry logs the page cache keeps: the newest bytes, for readers that are not far behind.

Without a bound each flush goes to pages that were never used before, which costs a machine more than writing does, and
a virtual one several times more; with one, the same pages are used again and again.
"""

from __future__ import annotations

from collections import deque

from magnetar.bookie.entry_log import LogFiles, StoredRecord
from magnetar.environment.logs import get_logger

_PAGE = 4096

log = get_logger("magnetar.bookie.storage")


class PageWindow:
    """Belongs to the storage thread."""

    def __init__(self, logs: LogFiles, max_bytes: int) -> None:
        self._logs = logs
        self._max_bytes = max_bytes
        self._written: deque[tuple[int, int, int]] = deque()
        self.bytes = 0

    def written(self, log_id: int, records: list[StoredRecord]) -> None:
        """These records, one after the other, are in the log and synced: older ones leave the window."""
        if not records:
            return
        start = records[0].location.offset // _PAGE * _PAGE
        end = records[-1].location.offset + records[-1].location.length
        self._written.append((log_id, start, end))
        self.bytes += end - start
        while self.bytes > self._max_bytes:
            self._forget(*self._written.popleft())

    def _forget(self, log_id: int, start: int, end: int) -> None:
        self.bytes -= end - start
        try:
            with self._logs.opened(log_id) as file:
                file.forget(start, end - start)
        except OSError as error:  # The log is gone, or the file system does not take hints.
            log.debug("entry_log.not_forgotten", log=log_id, reason=str(error))
