"""Each query of the dashboards under config/grafana finds a series in what a living platform tells."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from magnetar.testing.processes import MagnetarProcess

DASHBOARDS = sorted((Path(__file__).parents[3] / "config" / "grafana").glob("*.json"))
FUNCTION = """
class Shout:
    def process(self, text, context):
        return text.upper()
"""
PATIENCE_S = 60.0
SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\s*(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(=~|=|!=|!~)\s*"((?:[^"\\]|\\.)*)"')
WORDS = {"sum", "rate", "by", "max", "time", "increase"}

pytestmark = pytest.mark.integration

Series = list[tuple[str, dict[str, str]]]


def queries() -> list[tuple[str, str]]:
    """Every query, with the panel it belongs to."""
    found = []
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            found += [(f"{path.stem}: {panel['title']}", each["expr"]) for each in panel["targets"]]
    return found


def selectors(query: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The metrics a query asks for, each with what its labels have to match."""
    bare = re.sub(r"\bby\s*\([^)]*\)", "", re.sub(r"\[[^]]*\]", "", query))
    for name, labels in SELECTOR.findall(bare):
        if name in WORDS or name.isdigit():
            continue
        matchers = {}
        for label, operator, value in MATCHER.findall(labels):
            assert operator in ("=", "=~"), query
            matchers[label] = re.sub(r"\$\w+", ".*", value)
        yield name, matchers


def found(name: str, matchers: dict[str, str], series: Series) -> bool:
    """Whether a series has the name, and has every label, matching."""
    return any(
        known == name
        and all(label in labels and re.fullmatch(want, labels[label]) for label, want in matchers.items())
        for known, labels in series
    )


def scrape(platform: MagnetarProcess) -> Series:
    with urllib.request.urlopen(f"{platform.web_url}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    lines = map(SELECTOR.match, text.splitlines())  # The names as they are: parsers give counters others.
    return [
        (line[1], {label: value for label, _, value in MATCHER.findall(line[2] or "")})
        for line in lines
        if line
    ]


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Series]:
    """What is told by a platform where messages went through a function."""
    directory = tmp_path_factory.mktemp("dashboards")
    (directory / "shout.py").write_text(FUNCTION)
    with MagnetarProcess.standalone(directory) as platform:
        magnetar = str(Path(sys.executable).with_name("magnetar"))
        create = [magnetar, "functions", "create", "--admin-url", platform.web_url, "--name", "shout"]
        create += ["--py", str(directory / "shout.py"), "--classname", "shout.Shout"]
        subprocess.run([*create, "--inputs", "in", "--output", "out"], check=True, timeout=60)
        client = pulsar.Client(platform.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        try:
            heard = client.subscribe("out", "s")
            client.create_producer("in").send(b"hello")
            assert heard.receive(int(PATIENCE_S * 1000)).data() == b"HELLO"
            deadline = time.monotonic() + PATIENCE_S
            while not found("pulsar_function_received_total", {}, told := scrape(platform)):
                assert time.monotonic() < deadline, "functions are not told of"
                time.sleep(0.5)
            assert found("pulsar_txn_active_count", {}, told) or begin_transaction(platform)
            yield scrape_until(platform, "pulsar_txn_active_count", deadline)
        finally:
            client.close()


def begin_transaction(platform: MagnetarProcess) -> bool:
    """A coordinator is there once it is used."""
    import asyncio

    from magnetar.client.client import Client

    async def begin() -> None:
        client = Client(platform.service_url)
        try:
            await (await client.begin_transaction()).abort()
        finally:
            await client.close()

    asyncio.run(begin())
    return True


def scrape_until(platform: MagnetarProcess, metric: str, deadline: float) -> Series:
    """A page that has the metric: pages are a second old."""
    while not found(metric, {}, told := scrape(platform)):
        assert time.monotonic() < deadline, f"{metric} is not told"
        time.sleep(0.2)
    return told


def test_there_are_dashboards() -> None:
    assert [path.stem for path in DASHBOARDS] == ["bookie", "functions", "overview", "topic"]
    assert len(queries()) > 60


def test_every_query_finds_a_series(series: Series) -> None:
    missing = [
        f"{panel}: {name}{matchers}"
        for panel, query in queries()
        for name, matchers in selectors(query)
        if not found(name, matchers, series)
    ]
    assert not missing, "\n".join(missing)


def test_what_is_not_told_is_not_found(series: Series) -> None:
    """The eyes of the test above."""
    assert list(selectors('sum by (topic) (rate(a{x=~"$x"}[5m])) / b > 0')) == [("a", {"x": ".*"}), ("b", {})]
    assert not found("pulsar_rate_inn", {}, series)
    assert not found("pulsar_rate_in", {"nothing": ".*"}, series)
    assert not found("pulsar_rate_in", {"topic": "nobody"}, series)


def test_dashboards_are_what_grafana_reads() -> None:
    for path in DASHBOARDS:
        board: dict[str, Any] = json.loads(path.read_text())
        assert board["uid"] == f"magnetar-{path.stem}"
        assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
        declared = {each["name"] for each in board["templating"]["list"]}
        used = set(re.findall(r"\$\{?(\w+)", path.read_text())) - {"__all"}
        assert used <= declared, path
