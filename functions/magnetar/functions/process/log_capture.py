"""Everything user code says: logging, print, and what it writes to standard error, in one file of its own."""

from __future__ import annotations

import io
import logging
import logging.handlers
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from magnetar.functions.process.channel import Channel, HostGone
from magnetar.functions.process.job import Job
from magnetar.functions.process.wire import ToHost, json_frame

LOG_BYTES_MAX = 10 * 1024 * 1024
LOG_FILES_KEPT = 5
LINES_MAX = 500
LINE_CHARS_MAX = 16 * 1024
FLUSH_EVERY_S = 0.1


class TopicHandler(logging.Handler):
    """Gathers lines for the log topic; the loop flushes them at the end of each entry."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel
        self._lines: list[tuple[int, str, str]] = []
        self._flushed_at = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)[:LINE_CHARS_MAX]
        except Exception:  # A wrong format string of the user's must not fail the message.
            self.handleError(record)
            return
        self._lines.append((int(record.created * 1000), record.levelname, line))
        if len(self._lines) >= LINES_MAX or record.created - self._flushed_at > FLUSH_EVERY_S:
            self.flush()

    def flush(self) -> None:
        with self.lock or threading.RLock():
            lines, self._lines = self._lines, []
            self._flushed_at = time.time()
        if lines:
            try:
                self._channel.send(json_frame(ToHost.LOGS, lines))
            except HostGone:
                return  # The main thread will find out and end the process.

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        _report_to_real_stderr()


class FileHandler(logging.handlers.RotatingFileHandler):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        _report_to_real_stderr()


class LineWriter(io.TextIOBase):
    """Stands for sys.stdout or sys.stderr: each line becomes a log line."""

    def __init__(self, logger: logging.Logger, level: int) -> None:
        self._logger = logger
        self._level = level
        self._rest = threading.local()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        lines = (getattr(self._rest, "text", "") + text).split("\n")
        self._rest.text = lines.pop()
        for line in lines:
            self._logger.log(self._level, "%s", line)
        return len(text)

    def flush(self) -> None:
        """An unfinished line stays until it is finished."""


def capture(job: Job, channel: Channel) -> TopicHandler | None:
    """Send logging, print and sys.stderr to the job's log file, and to the host if it has a log topic.

    The file descriptors 1 and 2 stay what the host made them: there faulthandler and dying libraries leave their
    last words.
    """
    root = logging.getLogger()
    root.handlers.clear()
    root.setLevel(logging.INFO)
    formatter = logging.Formatter("[%(asctime)s] [%(levelname)s] %(name)s: %(message)s")
    if job.log_file:
        Path(job.log_file).parent.mkdir(parents=True, exist_ok=True)
        to_file = FileHandler(
            job.log_file, maxBytes=LOG_BYTES_MAX, backupCount=LOG_FILES_KEPT, encoding="utf-8", delay=True
        )
        to_file.setFormatter(formatter)
        root.addHandler(to_file)
    to_topic = None
    if job.log_to_topic:
        to_topic = TopicHandler(channel)
        to_topic.setFormatter(logging.Formatter("%(message)s"))
        root.addHandler(to_topic)
    if root.handlers:
        stdout: Any = LineWriter(logging.getLogger("stdout"), logging.INFO)
        stderr: Any = LineWriter(logging.getLogger("stderr"), logging.ERROR)
        sys.stdout, sys.stderr = stdout, stderr
    return to_topic


def _report_to_real_stderr() -> None:
    if sys.__stderr__ is not None:
        traceback.print_exc(file=sys.__stderr__)
