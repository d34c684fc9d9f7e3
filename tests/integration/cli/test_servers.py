"""`magnetar standalone`, `broker` and `bookie` as real processes: ready when they say so, and clear when they cannot."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from magnetar.metrics.process import memory_of_tree_bytes
from magnetar.testing.commands import make_cluster
from magnetar.testing.processes import MagnetarProcess, free_port
from magnetar.testing.zookeeper import ZooKeeperServer

pytestmark = pytest.mark.integration

MAGNETAR = str(Path(sys.executable).with_name("magnetar"))
QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


def refused(*arguments: str | Path, status: int = 1) -> str:
    """Run a server that must not start; what it says on standard error."""
    ended = subprocess.run(
        [MAGNETAR, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == status, ended.stderr
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr
    return ended.stderr


def exchange(url: str, topic: str, payload: bytes) -> None:
    client = pulsar.Client(url, logger=QUIET)
    try:
        consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
        client.create_producer(topic).send(payload)
        found = b""
        while found != payload:  # What an earlier life had no time to acknowledge comes again.
            message = consumer.receive(timeout_millis=20_000)
            found = message.data()
            consumer.acknowledge(message)
    finally:
        client.close()


def stored(url: str, topic: str) -> list[bytes]:
    client = pulsar.Client(url, logger=QUIET)
    try:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(20_000).data())
        return found
    finally:
        client.close()


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[MagnetarProcess]:
    with MagnetarProcess.standalone(tmp_path) as platform:
        yield platform


def test_ready_is_said_once_and_meant(tmp_path: Path) -> None:
    """Both doors are tried at the moment the line is read: no second try, no waiting."""
    command = [MAGNETAR, "standalone", "--data", str(tmp_path / "data"), "--port", "0", "--web-port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        match = re.fullmatch(
            r"magnetar ready: pulsar://127\.0\.0\.1:(\d+) http://127\.0\.0\.1:(\d+) \((\d+\.\d\d) s\)\n", line
        )
        assert match, line
        with socket.create_connection(("127.0.0.1", int(match[1])), timeout=5):
            pass
        with urllib.request.urlopen(f"http://127.0.0.1:{match[2]}/admin/v2/clusters", timeout=5) as answer:
            assert answer.read() == b'["standalone"]'
        exchange(f"pulsar://127.0.0.1:{match[1]}", "first", b"hello")
    finally:
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=30)
    assert rest == "", "the ready line is the only one on standard output"
    assert process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_polite_end_keeps_everything_and_exits_0(tmp_path: Path, number: signal.Signals) -> None:
    platform = MagnetarProcess.standalone(tmp_path).start()
    client = pulsar.Client(platform.service_url, logger=QUIET)
    producer = client.create_producer("kept", block_if_queue_full=True)
    receipts: list[bytes] = []

    def confirm(result: object, _: object, payload: bytes) -> None:
        if result == pulsar.Result.Ok:
            receipts.append(payload)

    client.subscribe("kept", "keeps").close()
    for serial in range(2000):
        payload = b"%d" % serial
        producer.send_async(payload, lambda result, id, payload=payload: confirm(result, id, payload))
    platform.send_signal(number)
    assert platform.wait(30) == 0
    platform.stop()
    client.close()
    with platform:
        client = pulsar.Client(platform.service_url, logger=QUIET)
        consumer = client.subscribe("kept", "keeps")
        found: set[bytes] = set()
        while not set(receipts) <= found:
            found.add(consumer.receive(timeout_millis=20_000).data())
        client.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_start_that_is_called_off_ends_without_a_word(tmp_path: Path, number: signal.Signals) -> None:
    """While it reads its settings: from a pipe, so that the test knows when that is."""
    config = tmp_path / "settings.yaml"
    os.mkfifo(config)
    command = [MAGNETAR, "standalone", "--data", str(tmp_path / "data"), "--config", str(config)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with config.open("w"):
        process.send_signal(number)
        assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 128 + number
    assert not (tmp_path / "data").exists()


def test_a_standalone_that_was_killed_starts_again_on_its_data(tmp_path: Path) -> None:
    platform = MagnetarProcess.standalone(tmp_path)
    for serial in range(3):
        platform.start()
        exchange(platform.service_url, f"topic-{serial}", b"x" * serial)
        platform.kill()


def test_light_at_rest(platform: MagnetarProcess) -> None:
    """The hard bounds; what is measured is far below them (docs/decisions)."""
    assert memory_of_tree_bytes([platform.pid]) < 120_000_000
    began, cpu = time.monotonic(), cpu_seconds(platform.pid)
    while time.monotonic() < began + 3:
        with urllib.request.urlopen(f"{platform.web_url}/metrics", timeout=10) as answer:
            assert answer.status == 200
        time.sleep(1)
    assert (cpu_seconds(platform.pid) - cpu) / (time.monotonic() - began) < 0.05


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


# What cannot be.


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused("standalone", "--data", tmp_path / "a", "--port", str(port), "--web-port", "0")
        assert f"port {port} on 127.0.0.1 is in use" in said
        said = refused("standalone", "--data", tmp_path / "b", "--port", "0", "--web-port", str(port))
        assert "choose another with --web-port" in said
        said = refused("bookie", "--data", tmp_path / "c", "--port", str(port), "--metadata-store", "memory:")
        assert "choose another with --port" in said


def test_clients_are_told_the_name_that_was_chosen(tmp_path: Path) -> None:
    """As in a container: it listens everywhere, and is reached by a name that only the user knows."""
    everywhere = ("--host", "0.0.0.0", "--advertised-host", "localhost")
    with MagnetarProcess.standalone(tmp_path, arguments=everywhere) as platform:
        assert platform.service_url.startswith("pulsar://localhost:")
        port = platform.service_url.rpartition(":")[2]
        exchange(f"pulsar://127.0.0.1:{port}", "named", b"hello")
        path = f"{platform.web_url}/lookup/v2/topic/persistent/public/default/named"
        with urllib.request.urlopen(path, timeout=10) as answer:
            assert f"pulsar://localhost:{port}".encode() in answer.read()


def test_a_host_of_another_machine_is_refused(tmp_path: Path) -> None:
    assert "cannot listen on 192.0.2.1" in refused(
        "standalone", "--data", tmp_path / "d", "--host", "192.0.2.1"
    )


def test_data_in_use_is_named_with_its_owner(platform: MagnetarProcess, tmp_path: Path) -> None:
    said = refused("standalone", "--data", tmp_path / "data", "--port", "0", "--web-port", "0")
    assert f"{tmp_path / 'data'} is in use by process {platform.pid}" in said


@pytest.mark.parametrize("part", ["MAGNETAR", "metadata/FORMAT"])
def test_data_of_a_newer_version_is_left_alone(tmp_path: Path, part: str) -> None:
    MagnetarProcess.standalone(tmp_path).start().stop()
    marker = tmp_path / "data" / part
    newer = '{"version": 2, "role": "standalone", "id": "x"}' if part == "MAGNETAR" else "2\n"
    marker.write_text(newer)
    said = refused("standalone", "--data", tmp_path / "data", "--port", "0", "--web-port", "0")
    assert "format" in said
    assert "newer" in said
    assert marker.read_text() == newer


def test_data_of_another_role_is_left_alone(tmp_path: Path) -> None:
    MagnetarProcess.standalone(tmp_path).start().stop()
    data = tmp_path / "data"
    said = refused("bookie", "--data", data, "--port", "0", "--metadata-store", "memory:")
    assert "belongs to a standalone" in said


def test_a_data_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot be used" in refused(
        "standalone", "--data", tmp_path / "file", "--port", "0", "--web-port", "0"
    )


def test_a_wrong_setting_is_named(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("broker:\n  max_message_bytes: large\n")
    said = refused("standalone", "--config", tmp_path / "s.yaml")
    assert "s.yaml: broker.max_message_bytes" in said
    assert "'large'" in said
    assert "invalid int value" in refused("standalone", "--port", "x", status=2)


def test_a_cluster_role_needs_a_metadata_store(tmp_path: Path) -> None:
    assert "Say --metadata-store" in refused("broker", "--data", tmp_path / "x")
    nowhere = f"zk:127.0.0.1:{free_port()}?session_timeout_s=0.5"
    said = refused("bookie", "--data", tmp_path / "x", "--port", "0", "--metadata-store", nowhere)
    assert "check that it runs" in said
    said = refused("bookie", "--data", tmp_path / "x", "--port", "0", "--metadata-store", "redis:x")
    assert "cannot tell what metadata store" in said


# A cluster.


@pytest.mark.zookeeper
def test_three_bookies_and_a_broker(tmp_path: Path) -> None:
    """Over TCP and a real ZooKeeper; a bookie and the broker are killed and come back."""
    with ZooKeeperServer(tmp_path / "zookeeper") as keeper:
        store = f"zk:{keeper.address}/cluster"
        make_cluster(store)
        bookies = [
            MagnetarProcess(
                ["bookie", "--metadata-store", store, "--data", str(tmp_path / f"b{n}"), "--port", "0"],
                tmp_path / f"b{n}.log",
            )
            for n in range(3)
        ]
        words = ["broker", "--metadata-store", store, "--data", str(tmp_path / "broker"), "--port", "0"]
        words += ["--web-port", "0", "--ensemble", "3", "--write-quorum", "3", "--ack-quorum", "2"]
        broker = MagnetarProcess(words, tmp_path / "broker.log")
        try:
            for bookie in bookies:
                bookie.start()
                assert bookie.urls[0].startswith("bookie://127.0.0.1:")
            broker.start()
            exchange(broker.service_url, "replicated", b"one")
            bookies[0].kill()
            exchange(broker.service_url, "with-two-bookies", b"two")
            bookies[0].start()
            broker.kill()
            broker.start()
            exchange(broker.service_url, "after-all", b"three")
            assert broker.stop() == 0
            assert [bookie.stop() for bookie in bookies] == [0, 0, 0]
        finally:
            for process in (broker, *bookies):
                if process.alive():
                    process.kill()


def test_a_second_signal_ends_it_at_once_and_costs_nothing(tmp_path: Path) -> None:
    platform = MagnetarProcess.standalone(tmp_path).start()
    client = pulsar.Client(platform.service_url, logger=QUIET)
    client.subscribe("kept", "keeps")
    client.create_producer("kept").send(b"x")
    client.close()
    platform.send_signal(signal.SIGTERM)
    platform.send_signal(signal.SIGINT)
    # Both may be pending when it runs again; which is then heard first is the kernel's choice.
    assert platform.wait(30) in (0, 128 + signal.SIGINT, 128 + signal.SIGTERM)
    platform.stop()
    with platform:
        assert b"x" in stored(platform.service_url, "kept")


def test_the_last_facts_are_told_when_asked(platform: MagnetarProcess) -> None:
    platform.send_signal(signal.SIGUSR2)
    deadline = time.monotonic() + 20
    while "flight recorder: the last" not in platform.log_tail(200):
        assert time.monotonic() < deadline
        time.sleep(0.02)
