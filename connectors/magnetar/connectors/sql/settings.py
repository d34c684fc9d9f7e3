"""What an SQL sink may be told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from magnetar.connectors.errors import InvalidSetting
from magnetar.connectors.settings import Field, parse_settings

FIELDS = (
    Field(
        "url",
        "string",
        "The database, as SQLAlchemy names it: sqlite:///file.db",
        required=True,
        sensitive=True,
    ),
    Field("table", "string", "The table, or schema.table", required=True),
    Field("key", "strings", "The columns that identify a row; a record with the same key replaces it"),
    Field("create", "boolean", "Create the table if it is absent, typed by the first records", default=True),
    Field(
        "unknown_fields",
        "string",
        "Of fields without a column",
        default="reject",
        choices=("reject", "ignore"),
    ),
    Field("batch_records", "integer", "Rows in one transaction, at most", default=1000, minimum=1),
)


@dataclass(frozen=True, slots=True)
class SqlSettings:
    url: str
    table: str
    key: tuple[str, ...] | None
    create: bool
    unknown_fields: str
    batch_records: int

    @classmethod
    def parse(
        cls, configs: Mapping[str, Any], secret: Callable[[str], str | None] | None = None
    ) -> SqlSettings:
        """Raises InvalidSetting.

        Args:
            secret: where a sensitive setting that is absent is looked for.
        """
        settings = cls(**parse_settings(FIELDS, configs, secret))
        if "://" not in settings.url:
            raise InvalidSetting("url", "must look like dialect://…, for example sqlite:////data/flights.db")
        if settings.key and len(set(settings.key)) < len(settings.key):
            raise InvalidSetting("key", "names a column twice")
        return settings

    @property
    def schema(self) -> str | None:
        return self.table.rpartition(".")[0] or None

    @property
    def table_name(self) -> str:
        return self.table.rpartition(".")[2]


def check(configs: Mapping[str, Any]) -> None:
    """Raises InvalidSetting for what is wrong whatever the database holds."""
    SqlSettings.parse(configs)
