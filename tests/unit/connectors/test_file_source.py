"""The file source: what it publishes, where it resumes, and what it says when a file is not what it should be."""

from __future__ import annotations

import gzip
import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from magnetar.connectors.errors import InvalidSetting, MalformedRecord, SourceUnreadable
from magnetar.connectors.file.source import FileSource
from magnetar.connectors.interfaces import Record

FLIGHTS = 'origin,dest,delay\nJFK,"Boston, MA",3\nLGA,"two\nlines",-1\n\nEWR,"say ""hi""",\n'


class Broker:
    """What a topic remembers of a source: the highest sequence of each partition."""

    tenant, namespace, name, output_topic = "public", "default", "files", "persistent://public/default/rows"
    instance_id, num_instances = 0, 1
    logger = logging.getLogger("test")

    def __init__(self) -> None:
        self.stored: list[Record] = []
        self.metrics: dict[str, float] = {}

    def last_sequence(self, partition_id: str) -> int:
        sequences = [
            r.sequence for r in self.stored if r.partition_id == partition_id and r.sequence is not None
        ]
        return max(sequences, default=-1)

    def store(self, records: list[Record]) -> None:
        for record in records:
            assert record.sequence is not None
            assert record.sequence > self.last_sequence(record.partition_id), "the broker would drop it"
            self.stored.append(record)

    def secret(self, name: str) -> str | None:
        return None

    def record_metric(self, name: str, value: float) -> None:
        self.metrics[name] = self.metrics.get(name, 0) + value


class World:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


def opened(broker: Broker, world: World | None = None, **config: Any) -> FileSource:
    world = world or World()
    source = FileSource(monotonic=world.monotonic, sleep=world.sleep)
    source.open(config, broker)
    return source


def drain(source: FileSource) -> Iterator[Record]:
    try:
        while (records := source.read()) is not None:
            yield from records
    finally:
        source.close()


def values(records: list[Record]) -> list[Mapping[str, Any]]:
    return [json.loads(record.value) for record in records]


def test_each_csv_row_is_a_json_object_with_its_key(tmp_path: Path) -> None:
    path = tmp_path / "flights.csv"
    path.write_text("\ufeff" + FLIGHTS, encoding="utf-8")
    records = list(drain(opened(Broker(), path=str(path), format="csv", key="origin")))
    assert values(records) == [
        {"origin": "JFK", "dest": "Boston, MA", "delay": "3"},
        {"origin": "LGA", "dest": "two\nlines", "delay": "-1"},
        {"origin": "EWR", "dest": 'say "hi"', "delay": ""},
    ]
    assert [record.key for record in records] == ["JFK", "LGA", "EWR"]
    assert records[-1].sequence == path.stat().st_size


def test_json_lines_pass_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"k": 1, "x": 1.50}\n\n  {"k": null, "x": "é"}')
    records = list(drain(opened(Broker(), path=str(path), format="jsonl", key="k")))
    assert [record.value for record in records] == [b'{"k": 1, "x": 1.50}', '{"k": null, "x": "é"}'.encode()]
    assert [record.key for record in records] == ["1", None]


@pytest.mark.parametrize(
    ("name", "config"),
    [("flights.csv", {}), ("flights.csv.gz", {}), ("flights.csv", {"sort_by": "delay"})],
)
def test_a_restart_at_any_record_neither_loses_nor_repeats(
    tmp_path: Path, name: str, config: dict[str, Any]
) -> None:
    path = tmp_path / name
    data = FLIGHTS.encode()
    path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    config |= {"path": str(path), "format": "csv"}
    whole = list(drain(opened(Broker(), **config)))
    assert len(whole) == 3
    for stop in range(len(whole) + 1):
        broker = Broker()
        first_run = drain(opened(broker, batch_records=1, **config))
        for _ in range(stop):
            broker.store([next(first_run)])
        broker.store(list(drain(opened(broker, **config))))
        assert broker.stored == whole


def test_files_of_a_directory_come_by_name_each_with_its_own_position(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl", ".hidden"):
        (tmp_path / name).write_text(f'{{"of": "{name}"}}\n')
    records = list(drain(opened(Broker(), path=str(tmp_path), format="jsonl")))
    assert [value["of"] for value in values(records)] == ["a.jsonl", "b.jsonl"]
    assert len({record.partition_id for record in records}) == 2
    matched = list(drain(opened(Broker(), path=str(tmp_path / "b*"), format="jsonl")))
    assert matched == records[1:], "the same file is the same partition however it was found"


def test_instances_share_the_files_out(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number}.jsonl").write_text(f'{{"n": {number}}}\n')
    seen: list[int] = []
    for instance in range(3):
        broker = Broker()
        broker.instance_id, broker.num_instances = instance, 3
        seen += [
            value["n"] for value in values(list(drain(opened(broker, path=str(tmp_path), format="jsonl"))))
        ]
    assert sorted(seen) == list(range(20))


def test_sorting_puts_numbers_in_order_and_empty_cells_last(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("hour,n\n10,a\n,b\n9,c\nnoon,d\n9,e\n")
    records = list(drain(opened(Broker(), path=str(path), format="csv", sort_by=["hour"])))
    assert [value["n"] for value in values(records)] == ["c", "e", "a", "d", "b"]


def test_a_followed_file_yields_a_row_once_it_is_complete(tmp_path: Path) -> None:
    path, broker, world = tmp_path / "a.csv", Broker(), World()
    path.write_text("a,b")  # Not even the header is complete.
    source = opened(broker, world, path=str(path), format="csv", follow=True, poll_ms=100)

    def appended(text: str) -> list[Mapping[str, Any]]:
        with path.open("a") as file:
            file.write(text)
        arrived: list[Record] = []
        deadline = world.now + 0.5
        while world.now < deadline:
            records = source.read()
            assert records is not None, "a followed file has no end"
            arrived += records
        broker.store(arrived)
        return values(arrived)

    assert appended("\n1,2") == []
    assert appended('\n3,"four') == [{"a": "1", "b": "2"}]
    assert appended('\nfive"') == []
    assert appended("\n") == [{"a": "3", "b": "four\nfive"}]
    (tmp_path / "b.csv").write_text("ignored\n")
    source.close()
    source = opened(broker, world, path=str(path), format="csv", follow=True, poll_ms=100)
    assert appended("6,7\n") == [{"a": "6", "b": "7"}]


@pytest.mark.parametrize(("rate", "slice_records"), [(20, 1), (100, 5), (0.5, 1)])
def test_the_rate_is_kept_in_slices(tmp_path: Path, rate: float, slice_records: int) -> None:
    path, world = tmp_path / "a.jsonl", World()
    path.write_text('{"a": 1}\n' * 100)
    source = opened(Broker(), world, path=str(path), format="jsonl", rate=rate)
    arrived = 0
    while (records := source.read()) is not None:
        assert len(records) in (0, slice_records)
        arrived += len(records)
        assert arrived <= world.now * rate + 1e-6
    assert arrived == 100
    assert world.now == pytest.approx((100 + slice_records) / rate), "the last wait is for what is not there"


def test_event_times_are_read_from_a_column(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("t\n2013-01-01T05:00:00Z\n2013-01-01T00:00:00-05:00\n2013-01-01 05:00\n1357016400000\n\n")
    records = list(drain(opened(Broker(), path=str(path), format="csv", event_time="t")))
    assert [record.event_time_ms for record in records] == [1357016400000] * 4


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a,b\n1,2\n3\n", "has 1 values for 2 columns"),
        ("a,b\n1,2\n3,4,5\n", "has 3 values for 2 columns"),
        ('a,b\n1,2\n3,"open\n', "opens a quote that is never closed"),
        ("a,b\n1,2\n3," + "x" * 300 + "\n", "is longer than max_record_bytes"),
    ],
)
def test_a_malformed_row_is_named_by_its_offset_after_what_is_good(
    tmp_path: Path, text: str, reason: str
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    arrived: list[Record] = []
    with pytest.raises(MalformedRecord, match=reason) as failure:
        arrived.extend(drain(opened(Broker(), path=str(path), format="csv", max_record_bytes=200)))
    assert failure.value.offset == 8
    source = opened(Broker(), path=str(path), format="csv", max_record_bytes=200)
    good = source.read()
    source.close()
    assert good is not None
    assert values(good) == [{"a": "1", "b": "2"}]


def test_malformed_rows_are_skipped_and_counted_where_that_is_wanted(tmp_path: Path) -> None:
    path, broker = tmp_path / "a.jsonl", Broker()
    lines = [b'{"n": 1}', b"[2]", b"nonsense", b'{"n": NaN}', b"\xff", b"x" * 200, b"[" * 150, b'{"n": 3}']
    path.write_bytes(b"\n".join(lines))
    records = list(
        drain(opened(broker, path=str(path), format="jsonl", on_error="skip", max_record_bytes=160, key="n"))
    )
    assert [value["n"] for value in values(records)] == [1, 3]
    assert broker.metrics == {"skipped_rows": 6}


@pytest.mark.parametrize(
    ("replacement", "reason"),
    [(b"a,b\n1,2\n", "is shorter"), (b"a,b\n" + b"123,456789\n" * 9, "has no row ending there")],
)
def test_a_file_that_was_replaced_is_not_resumed_in_its_middle(
    tmp_path: Path, replacement: bytes, reason: str
) -> None:
    path, broker = tmp_path / "a.csv", Broker()
    path.write_text("a,b\n1,2\n3,4\n")
    broker.store(list(drain(opened(broker, path=str(path), format="csv"))))
    path.write_bytes(replacement)
    with pytest.raises(SourceUnreadable, match=reason):
        list(drain(opened(broker, path=str(path), format="csv")))


def test_a_file_that_is_not_there_or_cut_short_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceUnreadable, match=r"nowhere\.csv: no such file"):
        opened(Broker(), path=str(tmp_path / "nowhere.csv"), format="csv")
    with pytest.raises(SourceUnreadable, match="no file matches"):
        opened(Broker(), path=str(tmp_path / "*.csv"), format="csv")
    torn = tmp_path / "a.gz"
    torn.write_bytes(gzip.compress(FLIGHTS.encode())[:40])
    with pytest.raises(SourceUnreadable, match=r"a\.gz: cannot be read: .*end-of-stream"):
        list(drain(opened(Broker(), path=str(torn), format="csv")))
    (tmp_path / "empty.csv").touch()
    with pytest.raises(SourceUnreadable, match="has no header line"):
        list(drain(opened(Broker(), path=str(tmp_path / "empty.csv"), format="csv")))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({}, "'path': is required"),
        ({"path": "a"}, "'format': is required"),
        ({"path": "a", "format": "xml"}, "must be one of csv, jsonl"),
        ({"path": 5, "format": "csv"}, "'path': must be a string"),
        ({"pth": "a"}, "'pth': is unknown; did you mean 'path'"),
        ({"path": "a", "format": "csv", "rate": "fast"}, "'rate': must be a number"),
        ({"path": "a", "format": "csv", "batch_records": 0}, "must be at least 1"),
        ({"path": "a", "format": "csv", "batch_records": 1.5}, "must be a whole number"),
        ({"path": "a", "format": "csv", "follow": "maybe"}, "must be true or false"),
        ({"path": "a", "format": "csv", "follow": True, "terminate": "true"}, "a followed file has no end"),
        ({"path": "a", "format": "csv", "follow": True, "sort_by": "b"}, "might sort before"),
        ({"path": "a", "format": "csv", "encoding": "utf-16"}, "does not keep ASCII"),
        ({"path": "a", "format": "csv", "encoding": "klingon"}, "is unknown"),
        ({"path": "a", "format": "jsonl", "columns": "b"}, "for csv only"),
    ],
)
def test_a_wrong_setting_is_named(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidSetting, match=reason):
        opened(Broker(), **config)


@pytest.mark.parametrize("setting", ["key", "event_time", "sort_by"])
def test_a_column_that_is_not_there_is_named_beside_those_that_are(tmp_path: Path, setting: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(InvalidSetting, match=f"'{setting}': .* has no column 'c'; it has a, b"):
        list(drain(opened(Broker(), None, path=str(path), format="csv", **{setting: "c"})))
