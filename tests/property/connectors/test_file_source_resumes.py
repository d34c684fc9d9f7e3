"""Whatever a file holds and wherever the source is stopped, its records arrive once, in order, and complete."""

from __future__ import annotations

import csv
import io
import json
import logging
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.connectors.file.source import FileSource
from magnetar.connectors.interfaces import Record

cells = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\x00"), max_size=12)
tables = st.integers(1, 4).flatmap(
    lambda width: st.lists(
        st.lists(cells, min_size=width, max_size=width).filter(lambda row: row != [""]), max_size=25
    )
)


class Topic:
    tenant = namespace = name = output_topic = "t"
    instance_id, num_instances = 0, 1
    logger = logging.getLogger("test")

    def __init__(self) -> None:
        self.records: list[Record] = []

    def last_sequence(self, partition_id: str) -> int:
        return max((record.sequence or 0 for record in self.records), default=-1)

    def secret(self, name: str) -> str | None:
        return None

    def record_metric(self, name: str, value: float) -> None:
        raise AssertionError(f"{name} {value}")


def run(topic: Topic, config: dict[str, Any], crash_after: int | None) -> bool:
    """Read into `topic`, at most `crash_after` records. Whether the end was reached."""
    source = FileSource()
    source.open(config, topic)
    try:
        while (records := source.read()) is not None:
            for record in records:
                if crash_after == 0:
                    return False
                if crash_after is not None:
                    crash_after -= 1
                assert record.sequence is not None
                assert record.sequence > topic.last_sequence(record.partition_id)
                topic.records.append(record)
        return True
    finally:
        source.close()


@given(
    table=tables,
    line_end=st.sampled_from(["\n", "\r\n"]),
    last_line_ends=st.booleans(),
    mark=st.booleans(),
    crashes=st.lists(st.integers(0, 6), max_size=6),
    batch=st.integers(1, 5),
    sort=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_every_row_arrives_once_in_order(
    table: list[list[str]],
    line_end: str,
    last_line_ends: bool,
    mark: bool,
    crashes: list[int],
    batch: int,
    sort: bool,
) -> None:
    columns = [f"c{number}" for number in range(len(table[0]) if table else 1)]
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=line_end, quoting=csv.QUOTE_ALL).writerows([columns, *table])
    data = ("\ufeff" if mark else "") + text.getvalue()
    if not last_line_ends:
        data = data.removesuffix(line_end)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "table.csv"
        path.write_bytes(data.encode())
        config = {"path": str(path), "format": "csv", "key": "c0", "batch_records": batch}
        if sort:
            config["sort_by"] = "c0"
        topic = Topic()
        for crash_after in crashes:
            run(topic, config, crash_after)
        assert run(topic, config, None)
    published = [list(json.loads(record.value).values()) for record in topic.records]
    if sort:
        assert sorted(published) == sorted(table)
    else:
        assert published == table
        assert [record.key for record in topic.records] == [row[0] or None for row in table]


@given(
    rows=st.lists(st.dictionaries(cells, st.one_of(st.none(), st.integers(), cells)), max_size=10),
    cuts=st.lists(st.integers(0, 400), max_size=8),
)
@settings(max_examples=100, deadline=None)
def test_a_file_growing_byte_by_byte_is_read_by_whole_lines(
    rows: list[dict[str, Any]], cuts: list[int]
) -> None:
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    with tempfile.TemporaryDirectory() as directory:
        path, topic = Path(directory) / "rows.jsonl", Topic()
        path.touch()
        source = FileSource(monotonic=lambda: now[0], sleep=sleep)
        source.open({"path": str(path), "format": "jsonl", "follow": True, "poll_ms": 10}, topic)
        for cut in [*sorted(cuts), len(data)]:
            path.write_bytes(data[:cut])
            for _ in range(15):
                topic.records += source.read() or []
        source.close()
    assert [json.loads(record.value) for record in topic.records] == rows
