"""The SQL sink: a transaction a batch, and what a database refuses set aside."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from magnetar.connectors.errors import InvalidSetting, MissingLibrary, RowRefused, TargetUnusable
from magnetar.connectors.interfaces import Record, Sink, SinkContext
from magnetar.connectors.sql.columns import (
    ColumnType,
    Converter,
    Row,
    column_types,
    converter,
    fitted,
    row_of,
)
from magnetar.connectors.sql.settings import SqlSettings

if TYPE_CHECKING:
    from sqlalchemy import Column, Engine, Table
    from sqlalchemy.exc import DBAPIError

T = TypeVar("T")
Pair: TypeAlias = tuple[Record, Row]

KEY_TEXT_LENGTH = 255
"""MySQL and others index text of a known length only."""


class SqlSink(Sink):
    """Writes JSON objects to a table, in batches. Its configuration: `settings.FIELDS`.

    With a key, writing a batch again changes nothing. Without one, a batch that is delivered again is stored again.
    """

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._table: Table | None = None

    def open(self, config: Mapping[str, Any], context: SinkContext) -> None:
        self._settings = SqlSettings.parse(config, context.secret)
        self._context = context
        try:
            import sqlalchemy
        except ModuleNotFoundError as error:
            raise MissingLibrary("SQLAlchemy", "sql") from error
        try:
            self._engine = _engine(self._settings.url)
            self._table = self._existing_table()
        except ModuleNotFoundError as error:
            raise InvalidSetting("url", f"the database driver {error.name!r} is not installed") from error
        except sqlalchemy.exc.ArgumentError as error:
            raise InvalidSetting("url", str(error)) from error
        except sqlalchemy.exc.DBAPIError as error:
            raise TargetUnusable(self._shown_url(), f"cannot be opened: {error.orig}") from error
        if self._table is None and not self._settings.create:
            raise TargetUnusable(self._settings.table, "there is no such table, and `create` is false")

    def write(self, records: list[Record]) -> None:
        for start in range(0, len(records), self._settings.batch_records):
            self._write(self._rows(records[start : start + self._settings.batch_records]))

    def close(self) -> None:
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    # --- From records to rows -------------------------------------------------------------------------------------

    def _rows(self, records: list[Record]) -> list[Pair]:
        """The records that make rows of the table, with those. If it is absent, it is created to hold them all."""
        key = self._settings.key or ()
        parsed = self._accepted(((record, record) for record in records), lambda record: row_of(record, key))
        if not parsed:
            return []
        if self._table is None:
            self._table = self._create_table(column_types(row for _, row in parsed))
        columns = {column.name: _converter(column) for column in self._table.columns}
        ignore = self._settings.unknown_fields == "ignore"
        return self._accepted(parsed, lambda row: fitted(row, columns, ignore_unknown=ignore))

    def _accepted(self, items: Iterable[tuple[Record, T]], make_row: Callable[[T], Row]) -> list[Pair]:
        """The rows made of `items`; the records of those that make none are rejected."""
        pairs = []
        for record, item in items:
            try:
                pairs.append((record, make_row(item)))
            except RowRefused as error:
                self._context.reject(record, error)
        return pairs

    # --- Into the table -------------------------------------------------------------------------------------------

    def _write(self, pairs: list[Pair]) -> None:
        """Write all in one transaction; where the database refuses, find the rows it refuses and reject those.

        Raises what is no row's fault (no connection, no space, the table is gone): the batch is written again.
        """
        if not pairs:
            return
        from sqlalchemy.exc import DBAPIError, StatementError

        try:
            self._transact([row for _, row in pairs])
        except (StatementError, OverflowError, ValueError, TypeError) as error:
            if isinstance(error, DBAPIError) and not self._may_be_a_rows_fault(error):
                raise TargetUnusable(self._shown_url(), f"cannot be written to: {error.orig}") from error
            if len(pairs) == 1:
                reason = error.orig if isinstance(error, StatementError) and error.orig else error
                self._context.reject(pairs[0][0], RowRefused(f"the database refuses it: {reason}"))
                return
            middle = len(pairs) // 2
            self._write(pairs[:middle])
            self._write(pairs[middle:])

    def _transact(self, rows: list[Row]) -> None:
        from magnetar.connectors.sql.upsert import write_rows

        assert self._engine is not None
        assert self._table is not None
        key = self._settings.key or ()
        with self._engine.begin() as connection:
            for alike in _runs(
                rows
            ):  # A field that is absent, unlike one that is null, leaves its column alone.
                write_rows(connection, self._table, key, _last_of_each_key(alike, key))

    def _may_be_a_rows_fault(self, error: DBAPIError) -> bool:
        from sqlalchemy.exc import DataError, IntegrityError, InterfaceError, ProgrammingError

        if error.connection_invalidated:
            return False
        if isinstance(error, (DataError, IntegrityError)):
            return True
        # Drivers also use these two for a value of the wrong type. For a table that was dropped, too.
        return isinstance(error, (ProgrammingError, InterfaceError)) and self._existing_table() is not None

    # --- The table itself -----------------------------------------------------------------------------------------

    def _existing_table(self) -> Table | None:
        """The table as it is in the database. Raises TargetUnusable if the key cannot be one there."""
        from sqlalchemy import MetaData, Table, inspect

        settings = self._settings
        inspector = inspect(self._connected())
        if not inspector.has_table(settings.table_name, schema=settings.schema):
            return None
        table = Table(settings.table_name, MetaData(), schema=settings.schema, autoload_with=inspector.engine)
        for column in settings.key or ():
            if column not in table.columns:
                known = ", ".join(table.columns.keys())
                raise InvalidSetting(
                    "key", f"table {settings.table} has no column {column!r}; it has {known}"
                )
        if settings.key:
            name, schema = settings.table_name, settings.schema
            unique: list[Sequence[str | None]] = [
                inspector.get_pk_constraint(name, schema=schema)["constrained_columns"],
                *(
                    constraint["column_names"]
                    for constraint in inspector.get_unique_constraints(name, schema=schema)
                ),
                *(
                    index["column_names"]
                    for index in inspector.get_indexes(name, schema=schema)
                    if index["unique"]
                ),
            ]
            if not any(set(columns) == set(settings.key) for columns in unique):
                columns = ", ".join(settings.key)
                raise TargetUnusable(
                    settings.table,
                    f"has no primary key or unique index over ({columns}); "
                    f"CREATE UNIQUE INDEX {settings.table_name}_key ON {settings.table} ({columns})",
                )
        return table

    def _create_table(self, types: Mapping[str, ColumnType]) -> Table:
        import sqlalchemy as sa

        settings = self._settings
        key = settings.key or ()
        kinds: dict[ColumnType, Any] = {
            "boolean": sa.Boolean(create_constraint=False),
            "integer": sa.BigInteger(),
            "number": sa.Double(),
            "text": sa.Text(),
            "json": sa.Text(),
        }
        columns = [
            sa.Column(
                name,
                sa.String(KEY_TEXT_LENGTH) if name in key and kind in ("text", "json") else kinds[kind],
                primary_key=name in key,
                autoincrement=False,
            )
            for name, kind in types.items()
        ]
        table = sa.Table(settings.table_name, sa.MetaData(), *columns, schema=settings.schema)
        try:
            table.create(self._connected(), checkfirst=True)
            existing = self._existing_table()  # Another instance may have been faster, with other columns.
        except sa.exc.DBAPIError as error:
            existing = self._existing_table()
            if existing is None:
                raise TargetUnusable(settings.table, f"cannot be created: {error.orig}") from error
        return table if existing is None else existing

    def _connected(self) -> Engine:
        assert self._engine is not None
        return self._engine

    def _shown_url(self) -> str:
        """The URL without its password."""
        return self._connected().url.render_as_string(hide_password=True)


def _converter(column: Column[Any]) -> Converter | None:
    try:
        return converter(column.type.python_type)
    except NotImplementedError:  # SQLAlchemy knows no Python type for it.
        return None


def _runs(rows: list[Row]) -> Iterator[list[Row]]:
    """`rows` in runs of the same columns."""
    start = 0
    for end in range(1, len(rows) + 1):
        if end == len(rows) or rows[end].keys() != rows[start].keys():
            yield rows[start:end]
            start = end


def _last_of_each_key(rows: Iterable[Row], key: Sequence[str]) -> list[Row]:
    """One statement must not meet a key twice; the last row of a key is the one that stays."""
    if not key:
        return list(rows)
    last: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        identity = tuple(row[column] for column in key)
        last.pop(identity, None)
        last[identity] = row
    return list(last.values())


def _engine(url: str) -> Engine:
    from sqlalchemy import create_engine, event

    engine = create_engine(url, pool_pre_ping=True)
    if engine.dialect.name == "sqlite":
        # Left alone, the driver begins transactions when it sees fit, and not before DDL.
        @event.listens_for(engine, "connect")
        def leave_transactions_to_us(connection: Any, _: Any) -> None:
            connection.isolation_level = None
            connection.execute("PRAGMA busy_timeout = 5000")

        @event.listens_for(engine, "begin")
        def begin(connection: Any) -> None:
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine
