"""The commands against a real platform, as the README and pulsar-admin's users write them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from magnetar.cli.main import main
from magnetar.testing.processes import MagnetarProcess

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MagnetarProcess]:
    with MagnetarProcess.standalone(tmp_path_factory.mktemp("platform")) as platform:
        yield platform


@pytest.fixture
def magnetar(
    platform: MagnetarProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Runs a command and returns what it prints."""
    monkeypatch.setenv("MAGNETAR_ADMIN_URL", platform.web_url)
    monkeypatch.setenv("MAGNETAR_SERVICE_URL", platform.service_url)

    def run(words: str | list[str], status: int = 0) -> str:
        ended = main(words.split() if isinstance(words, str) else words)
        captured = capsys.readouterr()
        assert ended == status, f"{words}: {captured.out}{captured.err}"
        return captured.out if status == 0 else captured.err

    return run


def test_the_installed_command_reads_the_environment(platform: MagnetarProcess) -> None:
    command = [str(Path(sys.executable).with_name("magnetar")), "tenants", "list"]
    environment = {"MAGNETAR_ADMIN_URL": platform.web_url}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "public\npulsar\n"


def test_produce_and_consume(magnetar: Callable[..., str]) -> None:
    magnetar("topics create-subscription greetings -s me")
    assert "2 messages" in magnetar(
        ["produce", "greetings", "--messages", "hello,world", "-k", "k", "-p", "a=b"]
    )
    out = magnetar("consume greetings --subscription-name me --num-messages 2")
    assert "key:[k], properties:[a=b], content:hello" in out
    assert "content:world" in out
    assert "only 0 of 1" in magnetar("consume greetings -s me --timeout 0.2", status=1)


def test_consuming_slowly_and_without_a_trace(magnetar: Callable[..., str]) -> None:
    magnetar(["produce", "slow", "-m", "a,b,c,d"])
    began = time.monotonic()
    out = magnetar("consume slow -s brief -p Earliest -m NonDurable -n 4 -q 1 -r 10")
    assert time.monotonic() - began >= 0.3
    assert out.count("got message") == 4
    assert magnetar("topics subscriptions slow") == ""


def test_a_file_is_one_message(magnetar: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "payload").write_bytes(b"\x00\x01,\xff")
    magnetar("topics create-subscription files -s me -m earliest")
    magnetar(["produce", "files", "--files", str(tmp_path / "payload"), "--num-produce", "2"])
    assert magnetar("consume files -s me -n 2 --hex").count("00 01 2c ff") == 2


def test_topics(magnetar: Callable[..., str]) -> None:
    magnetar("topics create things")
    assert "already exists" in magnetar("topics create things", status=1)
    assert "persistent://public/default/things" in magnetar("topics list public/default").split()
    magnetar("topics create-partitioned-topic many -p 3")
    magnetar("topics delete many-partition-1")
    magnetar("topics create-missed-partitions many")
    assert "persistent://public/default/many-partition-1" in magnetar("topics list public/default").split()
    assert json.loads(magnetar("topics get-partitioned-topic-metadata many"))["partitions"] == 3
    magnetar("topics update-partitioned-topic many -p 4")
    assert "persistent://public/default/many" in magnetar("topics list-partitioned-topics public/default")
    magnetar("topics create-subscription things -s s -m earliest")
    assert magnetar("topics subscriptions things") == "s\n"
    magnetar(["produce", "things", "-m", "a,b,c", "--disable-batching"])
    assert "content" not in magnetar("topics peek-messages things -s s -n 2")
    assert json.loads(magnetar("topics stats things"))["subscriptions"]["s"]["msgBacklog"] == 3
    magnetar("topics skip things -s s -n 1")
    magnetar("topics clear-backlog things -s s")
    magnetar("topics reset-cursor things -s s -m earliest")
    assert json.loads(magnetar("topics stats things"))["subscriptions"]["s"]["msgBacklog"] == 3
    assert magnetar("topics lookup things").startswith("pulsar://127.0.0.1:")
    assert magnetar("topics bundle-range things").startswith("0x")
    assert "entryId" in magnetar("topics last-message-id things")
    magnetar("topics unload things")
    magnetar("topics terminate things")
    assert "cannot produce" in magnetar("produce things -m late", status=1)
    magnetar("topics unsubscribe things -s s")
    magnetar("topics delete things")
    magnetar("topics delete-partitioned-topic many")
    assert "(404)" in magnetar("topics stats things", status=1)
    magnetar(["topics", "create-partitioned-topic", "huge", "-p", "1000000000"], 1)


def test_messages_are_looked_at_without_being_consumed(
    platform: MagnetarProcess, magnetar: Callable[..., str]
) -> None:
    magnetar("topics create-subscription seen -s s -m earliest")
    client = pulsar.Client(platform.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        batches = client.create_producer(
            "seen", batching_enabled=True, batching_max_messages=3, batching_max_publish_delay_ms=60_000
        )
        for payload in (b"a", b"b", b"c"):
            batches.send_async(
                payload,
                lambda result, id: None,
                partition_key="k",
                properties={"x": "y"},
                event_timestamp=5000,
            )
        batches.flush()
        client.create_producer("seen", batching_enabled=False).send(b"d")
    finally:
        client.close()
    out = magnetar("topics peek-messages seen -s s -n 2")
    assert out.count("Batch Message ID") == 2
    assert "event-time: 1970-01-01T00:00:05.000Z\n" in out
    assert 'partition-key: k\nproperties: {"x": "y"}\nb\n' in out
    out = magnetar("topics peek-messages seen -s s -n 9")
    assert [line for line in out.splitlines() if line in set("abcd")] == ["a", "b", "c", "d"]
    assert "\nMessage ID" in out
    assert json.loads(magnetar("topics stats seen"))["subscriptions"]["s"]["msgBacklog"] == 2  # Entries.
    whole = int(magnetar("topics get-backlog-size seen -m earliest"))
    assert 0 == int(magnetar("topics get-backlog-size seen -m latest")) < whole
    assert "entryId" in magnetar("topics get-message-id seen -d 2020-01-01T00:00:00Z")


def test_tenants_and_namespaces(magnetar: Callable[..., str]) -> None:
    magnetar("tenants create acme --admin-roles ops")
    assert json.loads(magnetar("tenants get acme"))["allowedClusters"] == ["standalone"]
    magnetar("namespaces create acme/prod")
    magnetar("namespaces set-retention acme/prod -t 3h -s 10G")
    assert json.loads(magnetar("namespaces get-retention acme/prod"))["retentionTimeInMinutes"] == 180
    magnetar("namespaces set-message-ttl acme/prod -ttl 60")
    assert magnetar("namespaces get-message-ttl acme/prod") == "60\n"
    magnetar("namespaces set-deduplication acme/prod --enable")
    policies: dict[str, Any] = json.loads(magnetar("namespaces policies acme/prod"))
    assert policies["deduplicationEnabled"] is True
    assert magnetar("namespaces list acme") == "acme/prod\n"
    assert "Namespace does not exist" in magnetar("namespaces policies acme/nowhere", status=1)
    assert "(409)" in magnetar("tenants delete acme", status=1)
    magnetar("namespaces delete acme/prod")
    magnetar("tenants delete acme")
    assert "(404)" in magnetar("tenants get acme", status=1)


def test_brokers_and_clusters(magnetar: Callable[..., str]) -> None:
    assert magnetar("brokers healthcheck") == "ok\n"
    assert magnetar("clusters list") == "standalone\n"
    assert "brokerServiceUrl" in magnetar("clusters get standalone")
    assert magnetar("brokers list").startswith("127.0.0.1:")
