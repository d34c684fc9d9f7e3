"""Two brokers with workers over a real ZooKeeper: the one on duty is stopped or killed, and its function goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pulsar
import pytest

from magnetar.testing.admin_calls import keep_everything
from magnetar.testing.cluster import Cluster, ClusterPlan, RoleNode

pytestmark = pytest.mark.integration

DEADLINE_S = 40.0
PLAN = ClusterPlan(zookeepers=1, bookies=3, brokers=2, autorecoveries=0, tick_ms=500, session_timeout_s=3.0)
SHOUT = "class Shout:\n    def process(self, input, context):\n        return input.upper()\n"
SOURCE, TARGET = "persistent://public/default/quiet", "persistent://public/default/loud"


class WithFunctions(Cluster):
    """A cluster whose brokers run functions."""

    def _role(self, role: str, number: int, words: Sequence[str], *rest: Any, **options: Any) -> RoleNode:
        kept = [word for word in words if word != "--no-functions"]
        return super()._role(role, number, kept, *rest, **options)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with WithFunctions(tmp_path_factory.mktemp("workers"), PLAN) as cluster:
        keep_everything(cluster.web_url(), "public/default")
        yield cluster


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} did not come to be"
        time.sleep(0.05)
    return found


def answers(broker: RoleNode) -> bool:
    """Whether a broker's worker answers for the components."""
    if not broker.alive():
        return False
    try:
        return httpx.get(f"{broker.urls[1]}/admin/v3/functions/public/default", timeout=3).status_code == 200
    except httpx.HTTPError:
        return False


def on_duty(cluster: Cluster) -> RoleNode | None:
    return next((broker for broker in cluster.brokers if answers(broker)), None)


def hosts_of(cluster: Cluster) -> list[int]:
    """Every process that hosts the function, whoever started it."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if "-m magnetar.instance " in command and str(cluster.directory) in command and state != "Z":
                found.append(int(entry.name))
    return found


def deploy(web_url: str) -> None:
    config = {
        "tenant": "public",
        "namespace": "default",
        "name": "shout",
        "className": "shout.Shout",
        "inputs": [SOURCE],
        "output": TARGET,
        "processingGuarantees": "EFFECTIVELY_ONCE",
    }
    parts: list[tuple[str, Any]] = [
        ("functionConfig", (None, json.dumps(config), "application/json")),
        ("data", ("shout.py", SHOUT.encode(), "application/octet-stream")),
    ]
    answer = httpx.post(f"{web_url}/admin/v3/functions/public/default/shout", files=parts, timeout=60)
    assert answer.status_code == 204, answer.text


class Traffic:
    """Sends numbered messages through the function, and reads what comes out."""

    def __init__(self, cluster: Cluster) -> None:
        self._client = pulsar.Client(
            cluster.service_url,
            operation_timeout_seconds=30,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )
        self._producer = self._client.create_producer(SOURCE, send_timeout_millis=0, batching_enabled=False)

    def publish(self, numbers: range) -> None:
        for number in numbers:
            self._producer.send(b"m%05d" % number)

    def expect(self, numbers: range) -> None:
        """All that ever came out: each result once, in order, and nothing else."""
        reader = self._client.create_reader(TARGET, pulsar.MessageId.earliest)
        for number in numbers:
            assert reader.read_next(int(DEADLINE_S * 1000)).data() == b"M%05d" % number
        with pytest.raises(pulsar.Timeout):
            reader.read_next(500)
        reader.close()

    def close(self) -> None:
        self._client.close()


def test_a_function_outlives_the_workers_that_run_it(cluster: Cluster) -> None:
    """One is killed, one stopped past its session: one process at a time, and each result once, in order."""
    first: RoleNode = until(lambda: on_duty(cluster), "a worker on duty")
    second = next(broker for broker in cluster.brokers if broker is not first)
    deferred = httpx.get(f"{second.urls[1]}/admin/v3/functions/public/default", timeout=10)
    assert deferred.status_code == 307
    assert deferred.headers["location"].startswith(first.urls[1])
    deploy(first.urls[1])
    traffic = Traffic(cluster)
    traffic.publish(range(20))
    traffic.expect(range(20))
    traffic.publish(range(20, 60))
    first.kill()
    traffic.publish(range(60, 80))
    traffic.expect(range(80))
    assert on_duty(cluster) is second
    traffic.close()

    first.start()
    assert len(hosts_of(cluster)) == 1
    second.pause()
    try:
        until(lambda: not hosts_of(cluster), "the end of the stopped worker's process, with its lease")
        until(lambda: answers(first), "the other worker's duty")
        until(lambda: len(hosts_of(cluster)) == 1, "a process of the other worker")
    finally:
        second.resume()
    until(lambda: answers(first) and not answers(second), "what the one that was stopped says, awake")
    time.sleep(1.0)
    assert len(hosts_of(cluster)) == 1
    traffic = Traffic(cluster)
    traffic.publish(range(80, 100))
    traffic.expect(range(100))
    traffic.close()
