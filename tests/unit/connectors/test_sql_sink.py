"""The SQL sink, on SQLite: a row a key, bad rows set aside, and what it says when a table does not fit."""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from magnetar.connectors.errors import InvalidSetting, TargetUnusable
from magnetar.connectors.interfaces import Record
from magnetar.connectors.sql.sink import SqlSink
from magnetar.connectors.sql.upsert import write_rows


class Host:
    tenant, namespace, name = "public", "default", "rows"
    instance_id, num_instances = 0, 1
    input_topics: Sequence[str] = ("t",)
    logger = logging.getLogger("test")

    def __init__(self) -> None:
        self.rejected: list[tuple[bytes, str]] = []
        self.secrets: dict[str, str] = {}

    def reject(self, record: Record, error: Exception) -> None:
        self.rejected.append((record.value, str(error)))

    def secret(self, name: str) -> str | None:
        return self.secrets.get(name)

    def record_metric(self, name: str, value: float) -> None:
        raise AssertionError(f"{name} {value}")


@pytest.fixture
def database(tmp_path: Path) -> sqlite3.Connection:
    return sqlite3.connect(tmp_path / "a.db")


def written(tmp_path: Path, values: list[Any], **config: Any) -> Host:
    host, sink = Host(), SqlSink()
    sink.open({"url": f"sqlite:///{tmp_path / 'a.db'}", "table": "t"} | config, host)
    try:
        sink.write(
            [Record(value if isinstance(value, bytes) else json.dumps(value).encode()) for value in values]
        )
    finally:
        sink.close()
    return host


def test_a_table_is_created_from_the_first_records(tmp_path: Path, database: sqlite3.Connection) -> None:
    rows = [
        {"id": "a", "n": 1, "x": 1, "ok": True, "late": None, "tags": ["b"]},
        {"id": "c", "n": 2**40, "x": 0.5, "ok": False, "late": 3, "tags": {"d": "é"}},
    ]
    assert written(tmp_path, rows, key="id").rejected == []
    assert database.execute("SELECT * FROM t ORDER BY id").fetchall() == [
        ("a", 1, 1.0, 1, None, '["b"]'),
        ("c", 2**40, 0.5, 0, 3, '{"d": "é"}'),
    ]
    types = {name: kind for _, name, kind, *_ in database.execute("PRAGMA table_info(t)")}
    assert types == {
        "id": "VARCHAR(255)",
        "n": "BIGINT",
        "x": "DOUBLE",
        "ok": "BOOLEAN",
        "late": "BIGINT",
        "tags": "TEXT",
    }


def test_writing_a_batch_again_changes_nothing(tmp_path: Path, database: sqlite3.Connection) -> None:
    rows = [{"a": 1, "b": "x", "v": 1}, {"a": 1, "b": "y", "v": 2}, {"a": 1, "b": "x", "v": 3}]
    for _ in range(3):
        assert written(tmp_path, rows, key="a, b").rejected == []
        assert database.execute("SELECT * FROM t ORDER BY b").fetchall() == [(1, "x", 3), (1, "y", 2)]


def test_an_absent_field_is_left_alone_and_a_null_is_not(
    tmp_path: Path, database: sqlite3.Connection
) -> None:
    written(tmp_path, [{"k": 1, "a": 1, "b": 1}, {"k": 1, "a": 2}, {"k": 1, "b": None}], key=["k"])
    assert database.execute("SELECT * FROM t").fetchall() == [(1, 2, None)]


def test_rows_that_are_all_key_are_kept_once(tmp_path: Path, database: sqlite3.Connection) -> None:
    written(tmp_path, [{"k": 1}, {"k": 1}, {"k": 2}], key="k")
    assert database.execute("SELECT * FROM t").fetchall() == [(1,), (2,)]


def test_without_a_key_each_record_is_a_row(tmp_path: Path, database: sqlite3.Connection) -> None:
    written(tmp_path, [{"a": 1}, {"a": 1}])
    assert database.execute("SELECT * FROM t").fetchall() == [(1,), (1,)]


def test_bad_records_are_rejected_and_the_rest_of_the_batch_is_stored(
    tmp_path: Path, database: sqlite3.Connection
) -> None:
    database.execute(
        "CREATE TABLE t (k INTEGER PRIMARY KEY, v TEXT NOT NULL CHECK (v <> 'bad'), at DATETIME)"
    )
    good = [{"k": number, "v": "x"} for number in range(50)]
    bad: list[Any] = [
        b"not json",
        [1],
        {"v": "no key"},
        {"k": 100, "v": None},
        {"k": 101, "v": "bad"},
        {"k": 102, "v": "x", "extra": 1},
        {"k": 2**70, "v": "x"},
        {"k": 103, "v": "x", "at": "yesterday"},
    ]
    mixed: list[Any] = [item for pair in zip(good[: len(bad)], bad, strict=True) for item in pair] + good[
        len(bad) :
    ]
    host = written(tmp_path, mixed, key="k")
    assert [k for (k,) in database.execute("SELECT k FROM t ORDER BY k")] == list(range(50))
    reasons = [reason for _, reason in host.rejected]
    assert len(reasons) == len(bad), reasons
    for expected in (
        "is not JSON",
        "not a JSON object but list",
        "the key column 'k' has no value",
        "NOT NULL constraint failed",
        "CHECK constraint failed",
        "the table has no column 'extra'",
        "too large",
        "the field 'at'",
    ):
        assert any(expected in reason for reason in reasons), (expected, reasons)


def test_a_bad_record_does_not_take_an_earlier_one_of_its_key_with_it(
    tmp_path: Path, database: sqlite3.Connection
) -> None:
    database.execute("CREATE TABLE t (k INTEGER PRIMARY KEY, v TEXT NOT NULL)")
    host = written(tmp_path, [{"k": 1, "v": "good"}, {"k": 1, "v": None}], key="k")
    assert database.execute("SELECT * FROM t").fetchall() == [(1, "good")]
    assert len(host.rejected) == 1


def test_unknown_fields_are_dropped_where_that_is_wanted_and_times_are_times(
    tmp_path: Path, database: sqlite3.Connection
) -> None:
    database.execute("CREATE TABLE t (k INTEGER PRIMARY KEY, at DATETIME)")
    host = written(
        tmp_path, [{"k": 1, "at": "2013-01-01T05:00:00", "x": 1}], key="k", unknown_fields="ignore"
    )
    assert host.rejected == []
    assert database.execute("SELECT * FROM t").fetchall() == [(1, "2013-01-01 05:00:00.000000")]


def test_what_is_no_rows_fault_fails_the_batch(tmp_path: Path, database: sqlite3.Connection) -> None:
    host, sink = Host(), SqlSink()
    sink.open({"url": f"sqlite:///{tmp_path / 'a.db'}", "table": "t", "key": "k"}, host)
    sink.write([Record(b'{"k": 1}')])
    database.execute("DROP TABLE t")
    with pytest.raises(TargetUnusable, match="no such table"):
        sink.write([Record(b'{"k": 2}'), Record(b'{"k": 3}')])
    sink.close()
    assert host.rejected == []


def test_two_instances_may_create_the_table_at_once(tmp_path: Path, database: sqlite3.Connection) -> None:
    start = threading.Barrier(2)
    rejected: list[Any] = []

    def instance(number: int) -> None:
        start.wait()
        rejected.extend(written(tmp_path, [{"k": number * 100 + n} for n in range(50)], key="k").rejected)

    threads = [threading.Thread(target=instance, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rejected == []
    assert database.execute("SELECT count(*) FROM t").fetchone() == (100,)


@pytest.mark.parametrize(
    ("config", "error", "reason"),
    [
        ({"url": "a.db"}, InvalidSetting, "must look like dialect://"),
        ({"url": "nosuchdb://x"}, InvalidSetting, "nosuchdb"),
        ({"url": "postgresql+nosuchdriver://x"}, InvalidSetting, "nosuchdriver"),
        ({"url": "sqlite:////nowhere/at/all.db"}, TargetUnusable, "unable to open database file"),
        ({"create": False}, TargetUnusable, "there is no such table"),
        ({"key": "k,k"}, InvalidSetting, "twice"),
        ({"table": "plain", "key": "nosuch"}, InvalidSetting, "has no column 'nosuch'; it has k, v"),
        ({"table": "plain", "key": "k"}, TargetUnusable, r"CREATE UNIQUE INDEX plain_key ON plain \(k\)"),
    ],
)
def test_a_wrong_setting_is_named(
    tmp_path: Path,
    database: sqlite3.Connection,
    config: dict[str, Any],
    error: type[Exception],
    reason: str,
) -> None:
    database.execute("CREATE TABLE plain (k INTEGER, v TEXT)")
    with pytest.raises(error, match=reason):
        written(tmp_path, [], **config)


def test_the_url_may_come_from_a_secret(tmp_path: Path, database: sqlite3.Connection) -> None:
    host, sink = Host(), SqlSink()
    host.secrets["url"] = f"sqlite:///{tmp_path / 'a.db'}"
    sink.open({"table": "t"}, host)
    sink.write([Record(b'{"a": 1}')])
    sink.close()
    assert database.execute("SELECT * FROM t").fetchall() == [(1,)]


def test_a_password_is_not_shown() -> None:
    with pytest.raises((TargetUnusable, InvalidSetting)) as failure:
        written(Path("/"), [], url="sqlite://user:hunter2@host/nowhere/at/all.db")
    assert "hunter2" not in str(failure.value)


@pytest.mark.parametrize(
    ("dialect", "ending"),
    [
        ("postgresql", "ON CONFLICT (k) DO UPDATE SET v = excluded.v"),
        ("mysql", "ON DUPLICATE KEY UPDATE v = VALUES(v)"),
    ],
)
def test_each_database_is_spoken_to_in_its_own_way(dialect: str, ending: str) -> None:
    said: list[str] = []

    def say(statement: Any, *_: object) -> None:
        said.append(str(statement.compile(dialect=engine.dialect)))

    engine: Any = sa.create_mock_engine(f"{dialect}://", say)
    table = sa.Table(
        "t", sa.MetaData(), sa.Column("k", sa.Integer, primary_key=True), sa.Column("v", sa.Text)
    )
    write_rows(engine, table, ["k"], [{"k": 1, "v": "x"}])
    (statement,) = said
    assert statement.startswith("INSERT INTO t (k, v) VALUES (")
    assert statement.endswith(ending)


def test_another_database_is_asked_before_it_is_told(tmp_path: Path) -> None:
    engine = sa.create_engine("sqlite://")
    engine.dialect.name = "other"
    table = sa.Table(
        "t", sa.MetaData(), sa.Column("k", sa.Integer, primary_key=True), sa.Column("v", sa.Text)
    )
    with engine.begin() as connection:
        table.create(connection)
        for value in ("x", "y"):
            write_rows(connection, table, ["k"], [{"k": 1, "v": value}])
        assert connection.execute(sa.select(table)).fetchall() == [(1, "y")]
