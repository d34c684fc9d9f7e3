"""Insert a row, or replace the one with its key: the statement that each database understands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Table, and_, bindparam, insert, literal, select, update

from magnetar.connectors.sql.columns import Row

MYSQL = frozenset({"mysql", "mariadb"})
ON_CONFLICT = frozenset({"sqlite", "postgresql"})


def write_rows(connection: Connection, table: Table, key: Sequence[str], rows: list[Row]) -> None:
    """Write rows that all have the same columns, and no two of them the same key."""
    columns = list(rows[0])
    dialect = connection.dialect.name
    if not key:
        connection.execute(insert(table), rows)
    elif dialect in ON_CONFLICT:
        connection.execute(_on_conflict(dialect, table, key, columns), rows)
    elif dialect in MYSQL:
        connection.execute(_on_duplicate_key(table, key, columns), rows)
    else:
        for row in rows:
            _update_else_insert(connection, table, key, row)


def _on_conflict(dialect: str, table: Table, key: Sequence[str], columns: Sequence[str]) -> Any:
    if dialect == "sqlite":
        from sqlalchemy.dialects.sqlite import insert as insert_into
    else:
        from sqlalchemy.dialects.postgresql import insert as insert_into  # type: ignore[assignment]
    statement = insert_into(table).values({column: bindparam(column) for column in columns})
    replaced = {column: statement.excluded[column] for column in columns if column not in key}
    if not replaced:
        return statement.on_conflict_do_nothing(index_elements=list(key))
    return statement.on_conflict_do_update(index_elements=list(key), set_=replaced)


def _on_duplicate_key(table: Table, key: Sequence[str], columns: Sequence[str]) -> Any:
    from sqlalchemy.dialects.mysql import insert as insert_into

    statement = insert_into(table).values({column: bindparam(column) for column in columns})
    replaced = [column for column in columns if column not in key] or [key[0]]
    return statement.on_duplicate_key_update({column: statement.inserted[column] for column in replaced})


def _update_else_insert(connection: Connection, table: Table, key: Sequence[str], row: Row) -> None:
    same_key = and_(*(table.c[column] == row[column] for column in key))
    changes = {column: value for column, value in row.items() if column not in key}
    if connection.execute(select(literal(1)).select_from(table).where(same_key)).first() is None:
        connection.execute(insert(table), row)
    elif changes:
        connection.execute(update(table).where(same_key).values(changes))
