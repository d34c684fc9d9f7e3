"""Nothing acknowledged is lost: real processes are killed with SIGKILL under load from the official client."""

from __future__ import annotations

import json
import random
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pulsar
import pytest

from magnetar.testing.acknowledged import SendLog, differences
from magnetar.testing.commands import make_cluster
from magnetar.testing.processes import MagnetarProcess, free_port

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

KILLS = 20
RECEIPTS_BETWEEN_KILLS = 300
DEADLINE_S = 90.0
PLAIN = "persistent://public/default/plain"
EXACT = "persistent://public/exact/deduplicated"


class Load:
    """Producers of the official client that send without pause, each with its log."""

    def __init__(self, url: str, topics: dict[str, bool], batching: bool) -> None:
        self._client = pulsar.Client(
            url, operation_timeout_seconds=60, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        self.logs = {topic: SendLog(f"producer-of-{topic.rpartition('/')[2]}") for topic in topics}
        self._producers = {
            topic: self._client.create_producer(
                topic,
                producer_name=self.logs[topic].name,
                batching_enabled=batching,
                batching_max_publish_delay_ms=2,
                batching_max_messages=50,
                block_if_queue_full=True,
                max_pending_messages=500,
                send_timeout_millis=0,
            )
            for topic in topics
        }
        self._stop = threading.Event()
        self.receipts = threading.Condition()
        self._threads = [threading.Thread(target=self._send, args=(topic,)) for topic in topics]
        for thread in self._threads:
            thread.start()

    def _send(self, topic: str) -> None:
        log, producer = self.logs[topic], self._producers[topic]
        while not self._stop.is_set():
            number = log.sent
            log.sent += 1
            # Numbered by us: the official client, when it reconnects before its first receipt, takes its next number from
            # what the broker has stored, however many messages wait with higher ones; those after it are then doubles.
            producer.send_async(log.payload(number), self._confirm(log, number), sequence_id=number)

    def _confirm(self, log: SendLog, number: int) -> Callable[[Any, Any], None]:
        def confirm(result: Any, _id: Any) -> None:
            if result == pulsar.Result.Ok:
                log.receipted.add(number)
            else:
                log.failed[number] = str(result)
            with self.receipts:
                self.receipts.notify_all()

        return confirm

    def receipted(self) -> int:
        return sum(len(log.receipted) for log in self.logs.values())

    def wait_for_receipts(self, more: int) -> None:
        """Wait until `more` receipts have come since now."""
        goal = self.receipted() + more
        deadline = time.monotonic() + DEADLINE_S
        with self.receipts:
            while self.receipted() < goal:
                left = deadline - time.monotonic()
                assert left > 0, f"only {self.receipted()} of {goal} receipts within {DEADLINE_S:.0f} s"
                self.receipts.wait(left)

    def finish(self) -> None:
        """Stop sending and wait for all receipts."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        for producer in self._producers.values():
            producer.flush()

    def close(self) -> None:
        self._stop.set()
        self._client.close()


def read_all(url: str, topic: str) -> list[bytes]:
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(timeout_millis=30_000).data())
        return found
    finally:
        client.close()


def keep_everything(web_url: str) -> None:
    """A namespace with deduplication, and retention on both, since nobody subscribes."""
    for method, path, body in (
        ("PUT", "/namespaces/public/exact", b"{}"),
        ("POST", "/namespaces/public/exact/deduplication", b"true"),
        (
            "POST",
            "/namespaces/public/exact/retention",
            b'{"retentionTimeInMinutes":-1,"retentionSizeInMB":-1}',
        ),
        (
            "POST",
            "/namespaces/public/default/retention",
            b'{"retentionTimeInMinutes":-1,"retentionSizeInMB":-1}',
        ),
    ):
        call(web_url, method, path, body)


def call(web_url: str, method: str, path: str, body: bytes) -> None:
    request = urllib.request.Request(
        f"{web_url}/admin/v2{path}", body, {"Content-Type": "application/json"}, method=method
    )
    with urllib.request.urlopen(request, timeout=30):
        pass


def ledgers_of(web_url: str, topic: str) -> int:
    path = topic.replace("persistent://", "/persistent/")
    with urllib.request.urlopen(f"{web_url}/admin/v2{path}/internalStats", timeout=30) as answer:
        return len(json.load(answer)["ledgers"])


def survive(
    url: str, choose: Callable[[random.Random], MagnetarProcess], *, batching: bool, seed: int
) -> None:
    """Load the platform, kill `KILLS` times under load, and compare."""
    dice = random.Random(seed)
    topics = {PLAIN: True, EXACT: False}
    load = Load(url, topics, batching)
    try:
        in_flight = 0
        for _ in range(KILLS):
            load.wait_for_receipts(dice.randint(1, RECEIPTS_BETWEEN_KILLS))
            victim = choose(dice)
            victim.kill()
            doubtful = sum(log.note_kill() for log in load.logs.values())
            assert doubtful > 0, "nothing was in flight: this kill proves nothing"
            in_flight += doubtful
            victim.start()
        load.wait_for_receipts(RECEIPTS_BETWEEN_KILLS)
        load.finish()
        assert in_flight > KILLS
        for topic, repeats_allowed in topics.items():
            log = load.logs[topic]
            assert not log.failed, dict(list(log.failed.items())[:3])
            assert not log.in_flight()
            wrong = differences([log], read_all(url, topic), repeats_allowed=repeats_allowed)
            assert not wrong, wrong
    finally:
        load.close()


@pytest.mark.parametrize("batching", [False, True], ids=["one message an entry", "batches"])
def test_standalone_survives_kills_under_load(tmp_path: Path, batching: bool) -> None:
    """In batches, a topic goes from ledger to ledger all the time: most deaths come close to a roll-over."""
    rolling = {"MAGNETAR_BROKER__LEDGER_MAX_ENTRIES": "1", "MAGNETAR_BROKER__LEDGER_MIN_AGE_S": "0"}
    platform = MagnetarProcess.standalone(
        tmp_path, port=free_port(), web_port=free_port(), environment=rolling if batching else {}
    )
    with platform:
        keep_everything(platform.web_url)
        survive(platform.service_url, lambda _: platform, batching=batching, seed=3)
        if batching:
            assert ledgers_of(platform.web_url, PLAIN) > 2 * KILLS


@contextmanager
def cluster(directory: Path) -> Iterator[tuple[MagnetarProcess, list[MagnetarProcess]]]:
    """A real ZooKeeper, three bookies over TCP, and a broker that writes to all three and waits for two."""
    from magnetar.testing.zookeeper import ZooKeeperServer

    with ExitStack() as stack:
        keeper = ZooKeeperServer(directory / "zookeeper")
        # Every death costs a session's time-out: the next life must wait for the last one's registration to go.
        store = f"zk:127.0.0.1:{keeper.start()}?session_timeout_s=2"
        stack.callback(keeper.stop)
        make_cluster(store)
        bookies = []
        for number in range(3):
            data = directory / f"bookie-{number}"
            arguments = ["bookie", "--metadata-store", store, "--data", str(data), "--port", str(free_port())]
            bookie = MagnetarProcess(arguments, directory / f"bookie-{number}.log")
            bookies.append(stack.enter_context(bookie))
        quorums = ["--ensemble", "3", "--write-quorum", "3", "--ack-quorum", "2"]
        ports = ["--port", str(free_port()), "--web-port", str(free_port())]
        arguments = [
            "broker",
            "--metadata-store",
            store,
            "--data",
            str(directory / "broker"),
            *ports,
            *quorums,
        ]
        broker = stack.enter_context(MagnetarProcess(arguments, directory / "broker.log"))
        yield broker, bookies


def write_while_one_hangs(url: str, bookie: MagnetarProcess) -> None:
    """Two of three receipts are enough: a bookie that neither answers nor dies holds nobody up."""
    load = Load(url, {"persistent://public/default/with-a-hung-bookie": True}, batching=False)
    try:
        load.wait_for_receipts(50)
        bookie.send_signal(signal.SIGSTOP)
        try:
            began = time.monotonic()
            load.wait_for_receipts(500)
            assert time.monotonic() - began < 5.0
        finally:
            bookie.send_signal(signal.SIGCONT)
        load.finish()
    finally:
        load.close()


@pytest.mark.zookeeper
def test_three_bookies_survive_kills_under_load(tmp_path: Path) -> None:
    """Any of the three bookies or the broker dies, twenty times, one at a time. Before that one bookie hangs."""
    with cluster(tmp_path) as (broker, bookies):
        keep_everything(broker.web_url)
        write_while_one_hangs(broker.service_url, bookies[0])
        survive(broker.service_url, lambda dice: dice.choice([broker, *bookies]), batching=True, seed=5)
