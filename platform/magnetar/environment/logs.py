"""Structured logs: a fact in the past tense, and the fields it speaks of.

    log = get_logger("magnetar.bookie").bind(bookie="127.0.0.1:3181")
    log.info("journal.replayed", records=17)

A thin layer over the standard library's logging, because a serving process should not pay for an import it
needs on no hot path, and because every tool that reads Python logs keeps working.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
from types import TracebackType
from typing import Any, TextIO

from magnetar.environment import flight_recorder


class Logger:
    """Writes facts with fields, and keeps them for the flight recorder where their level is off."""

    __slots__ = ("_fields", "_logger")

    def __init__(self, logger: logging.Logger, fields: dict[str, Any] | None = None) -> None:
        self._logger = logger
        self._fields = fields or {}

    def bind(self, **fields: Any) -> Logger:
        """A logger that adds `fields` to each of its facts."""
        return Logger(self._logger, {**self._fields, **fields})

    def debug(self, event: str, **fields: Any) -> None:
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self._write(logging.ERROR, event, fields)

    def exception(self, event: str, **fields: Any) -> None:
        """An error together with the traceback of the exception being handled."""
        self._write(logging.ERROR, event, fields, exc_info=True)

    def _write(self, level: int, event: str, fields: dict[str, Any], *, exc_info: bool = False) -> None:
        merged = {**self._fields, **fields} if self._fields else fields
        flight_recorder.keep(self._logger.name, event, merged)
        if self._logger.isEnabledFor(level):
            self._logger.log(level, event, extra={"fields": merged}, exc_info=exc_info)


class LineFormatter(logging.Formatter):
    """`2026-01-31 12:00:00,000 INFO magnetar.bookie journal.replayed records=17`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        fields = getattr(record, "fields", None)
        if not fields:
            return line
        head, newline, tail = line.partition("\n")
        pairs = " ".join(f"{key}={_plain(value)}" for key, value in fields.items())
        return f"{head} {pairs}{newline}{tail}"


class JsonFormatter(logging.Formatter):
    """One JSON object a line, for collectors."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time_ms": int(record.created * 1000),
            "level": record.levelname,
            "logger": record.name,
            "event": record.getMessage(),
        }
        entry.update(getattr(record, "fields", None) or {})
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def get_logger(name: str) -> Logger:
    """The logger of a room, named like its package."""
    return Logger(logging.getLogger(name))


def configure(level: str = "INFO", *, stream: TextIO | None = None, as_json: bool = False) -> None:
    """Send the logs of this process to `stream` (standard error unless told otherwise)."""
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else LineFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    signal.signal(signal.SIGUSR2, lambda *_: flight_recorder.dump())
    sys.excepthook = _tell_and_dump


def _tell_and_dump(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    sys.__excepthook__(kind, error, trace)
    if not issubclass(kind, KeyboardInterrupt):
        flight_recorder.dump(last=200)


def _plain(value: Any) -> str:
    text = str(value)
    return json.dumps(text) if any(c.isspace() or c in '"=' for c in text) else text
