"""How much of the entry logs the page cache keeps: the newest bytes, for readers that are not far behind, and what readers
further back have read last.

Without a bound each flush, and each read of a backlog, goes to pages that were never used before, which costs a machine
more than the writing or reading does, and a virtual one several times more; with one, the same pages are used again and
again.
"""

from __future__ import annotations

import threading
from collections import deque

from magnetar.bookie.entry_log import LogFiles, StoredRecord
from magnetar.environment.logs import get_logger

_PAGE = 4096

log = get_logger("magnetar.bookie.storage")


class PageWindow:
    """`written` belongs to the storage thread, `read` to any."""

    def __init__(self, logs: LogFiles, max_bytes: int, max_read_bytes: int) -> None:
        self._logs = logs
        self._max_bytes = max_bytes
        self._max_read_bytes = max_read_bytes
        self._written: deque[tuple[int, int, int]] = deque()
        self.bytes = 0
        self._oldest: tuple[int, int] | None = None
        """Log and offset from which on everything is in the window of what was written. Replaced as a whole."""
        self._lock = threading.Lock()
        self._read: deque[tuple[int, int, int]] = deque()
        self._read_bytes = 0

    def written(self, log_id: int, records: list[StoredRecord]) -> None:
        """These records, one after the other, are in the log and synced: older ones leave the window."""
        if not records:
            return
        start = records[0].location.offset // _PAGE * _PAGE
        end = records[-1].location.offset + records[-1].location.length
        self._written.append((log_id, start, end))
        self.bytes += end - start
        gone: list[tuple[int, int, int]] = []
        while self.bytes > self._max_bytes:
            oldest = self._written.popleft()
            self.bytes -= oldest[2] - oldest[1]
            gone.append(oldest)
        self._oldest = self._written[0][:2] if self._written else None
        for run in gone:
            self._forget(*run)

    def read(self, log_id: int, start: int, end: int) -> None:
        """These bytes were read from the log. Those read long before leave, unless they are in the window of the newest."""
        oldest = self._oldest
        if oldest is not None and (log_id, start) >= oldest:
            return
        start = start // _PAGE * _PAGE
        gone: list[tuple[int, int, int]] = []
        with self._lock:
            self._read.append((log_id, start, end))
            self._read_bytes += end - start
            while self._read_bytes > self._max_read_bytes:
                first = self._read.popleft()
                self._read_bytes -= first[2] - first[1]
                gone.append(first)
        for run in gone:
            self._forget(*run)

    def _forget(self, log_id: int, start: int, end: int) -> None:
        try:
            with self._logs.opened(log_id) as file:
                file.forget(start, end - start)
        except OSError as error:  # The log is gone, or the file system does not take hints.
            log.debug("entry_log.not_forgotten", log=log_id, reason=str(error))
