"""What a file source may be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from magnetar.connectors.errors import InvalidSetting
from magnetar.connectors.settings import Field, parse_settings

FIELDS = (
    Field("path", "string", "A file, a directory, or a glob pattern (** descends)", required=True),
    Field(
        "format", "string", "csv, or jsonl: one JSON object a line", required=True, choices=("csv", "jsonl")
    ),
    Field("key", "string", "The column whose value becomes the message key"),
    Field(
        "event_time",
        "string",
        "The column with the event time: ISO 8601 (UTC if it names no zone), or epoch ms",
    ),
    Field(
        "sort_by",
        "strings",
        "Columns to sort each file's rows by; numbers as numbers, rows without a value last",
    ),
    Field("follow", "boolean", "Keep waiting for rows and files that are still to come", default=False),
    Field("poll_ms", "integer", "How often to look for them", default=500, minimum=10),
    Field("terminate", "boolean", "At the end of the last file, terminate the output topic", default=False),
    Field(
        "rate", "number", "Records a second at most; 0: as fast as the topic takes them", default=0, minimum=0
    ),
    Field("on_error", "string", "What a malformed row does", default="fail", choices=("fail", "skip")),
    Field("delimiter", "string", "csv: what separates columns", default=","),
    Field("columns", "strings", "csv: the column names of a file that has no header line"),
    Field("encoding", "string", "Of the text; must keep ASCII as it is", default="utf-8"),
    Field(
        "compression",
        "string",
        "auto looks at the first bytes",
        default="auto",
        choices=("auto", "none", "gzip"),
    ),
    Field("batch_records", "integer", "Records handed over at once, at most", default=500, minimum=1),
    Field("batch_bytes", "integer", "... and their bytes, about", default=256 * 1024, minimum=1),
    Field("max_record_bytes", "integer", "A longer row is malformed", default=1024 * 1024, minimum=1),
)


@dataclass(frozen=True, slots=True)
class FileSettings:
    path: str
    format: str
    key: str | None
    event_time: str | None
    sort_by: tuple[str, ...] | None
    follow: bool
    poll_ms: int
    terminate: bool
    rate: float
    on_error: str
    delimiter: str
    columns: tuple[str, ...] | None
    encoding: str
    compression: str
    batch_records: int
    batch_bytes: int
    max_record_bytes: int

    @classmethod
    def parse(cls, configs: Mapping[str, Any]) -> FileSettings:
        """Raises InvalidSetting."""
        settings = cls(**parse_settings(FIELDS, configs))
        if settings.follow and settings.terminate:
            raise InvalidSetting("terminate", "cannot go with follow: a followed file has no end")
        if settings.follow and settings.sort_by:
            raise InvalidSetting(
                "sort_by", "cannot go with follow: rows still to come might sort before others"
            )
        if len(settings.delimiter) != 1 or settings.delimiter in '"\r\n':
            raise InvalidSetting("delimiter", f"must be one character, not {settings.delimiter!r}")
        if settings.columns and settings.format != "csv":
            raise InvalidSetting("columns", "is for csv only; jsonl rows name their own")
        if settings.columns and len(set(settings.columns)) < len(settings.columns):
            raise InvalidSetting("columns", "names a column twice")
        try:
            ascii_kept = '\n,"{'.encode(settings.encoding) == b'\n,"{'
        except LookupError as error:
            raise InvalidSetting("encoding", f"{settings.encoding!r} is unknown") from error
        if not ascii_kept:
            raise InvalidSetting("encoding", f"{settings.encoding!r} does not keep ASCII as it is; use utf-8")
        return settings


def check(configs: Mapping[str, Any]) -> None:
    """Raises InvalidSetting for what is wrong whatever the files hold."""
    FileSettings.parse(configs)
