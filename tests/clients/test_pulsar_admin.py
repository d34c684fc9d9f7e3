"""The real pulsar-admin, command after command: java/pulsar-admin.tour."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pulsar
import pytest

from magnetar.client.client import Client
from magnetar.testing.processes import MagnetarProcess
from tests.clients.toolchains import HERE, WITH_FETCHING, java, java_class_path

TOUR = HERE / "java" / "pulsar-admin.tour"
SHELL = HERE / "java" / "AdminShell.java"
SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
COORDINATORS = 16
PATIENCE_S = 10.0
SIGNS = (" =! ", " =~ ", " => ")

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("java"), WITH_FETCHING]


class AdminShell:
    """pulsar-admin in one virtual machine."""

    def __init__(self, platform: MagnetarProcess) -> None:
        command = java(java_class_path(), str(SHELL), platform.web_url, platform.service_url)
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, command: str) -> tuple[bool, str]:
        """Whether a command succeeded, and what it printed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\t".join(command.split()) + "\n")
        self._process.stdin.flush()
        status, _, printed = self._process.stdout.readline().partition(" ")
        assert status, "pulsar-admin has ended"
        return status == "0", base64.b64decode(printed).decode()

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(30)
        finally:
            self._process.kill()  # Nothing, where it has ended.


@pytest.fixture(scope="module")
def shell(platform: MagnetarProcess) -> Iterator[AdminShell]:
    opened = AdminShell(platform)
    yield opened
    opened.close()


def wrong(shell: AdminShell, line: str) -> str:
    """What is wrong with the answer to a line of the tour; empty if nothing is."""
    sign = next((each for each in SIGNS if each in line), "")
    command, _, wanted = line.partition(sign) if sign else (line, "", "")
    refused, patient = sign == " =! ", sign == " =~ "
    deadline = time.monotonic() + (PATIENCE_S if patient else 0.0)
    while True:
        done, printed = shell.ask(command)
        if done is not refused and wanted.lower() in printed.lower():
            return ""
        if time.monotonic() >= deadline:
            return f"{line}\n    {'done' if done else 'refused'}: {printed.strip()[:400]}"


def publish(platform: MagnetarProcess, topic: str, count: int) -> None:
    client = pulsar.Client(platform.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        producer = client.create_producer(topic)
        for number in range(count):
            producer.send(f"message-{number}".encode())
    finally:
        client.close()


def use_each_coordinator(platform: MagnetarProcess) -> None:
    """A transaction begun and aborted in each: a coordinator is there once it is used."""

    async def begin() -> None:
        client = Client(platform.service_url)
        try:
            for _ in range(COORDINATORS):
                transaction = await client.begin_transaction()
                await transaction.abort()
        finally:
            await client.close()

    asyncio.run(begin())


def test_every_command_does_what_it_does_with_pulsar(
    platform: MagnetarProcess, shell: AdminShell, tmp_path: Path
) -> None:
    with urllib.request.urlopen(f"{platform.web_url}/admin/v2/bookies/all", timeout=10) as answer:
        bookie = json.load(answer)["bookies"][0]["bookieId"]
    schema = {"type": "AVRO", "schema": json.dumps(SCHEMA), "properties": {}}
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    names = {
        "{web}": platform.web_url,
        "{binary}": platform.service_url,
        "{broker}": urlsplit(platform.web_url).netloc,
        "{bookie}": bookie,
        "{dir}": str(tmp_path),
    }
    faults = []
    commands = 0
    for line in TOUR.read_text().splitlines():
        for name, value in names.items():
            line = line.replace(name, value)
        if line.startswith("@publish "):
            _, topic, count = line.split()
            publish(platform, topic, int(count))
        elif line == "@transaction":
            use_each_coordinator(platform)
        elif line and not line.startswith("#"):
            commands += 1
            if fault := wrong(shell, line):
                faults.append(fault)
    assert not faults, "\n".join([f"{len(faults)} of {commands} commands:", *faults])
    assert commands > 390, "the tour has shrunk"


def test_a_fault_would_be_seen(shell: AdminShell) -> None:
    """The tour's own eyes: each kind of line can fail."""
    assert "refused" in wrong(shell, "tenants get nobody")
    assert "refused" in wrong(shell, "tenants get nobody => x")
    assert "refused" in wrong(shell, "tenants get nobody =! other words")
    assert "done" in wrong(shell, "tenants list => nobody")
    assert "done" in wrong(shell, "tenants list =! public")
    assert not wrong(shell, "tenants list")
    assert not wrong(shell, "tenants get nobody =! Tenant does not exist")
