"""The real pulsar-perf: what it publishes it consumes, reads, and carries on in transactions."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from magnetar.testing.processes import MagnetarProcess
from tests.clients.toolchains import WITH_FETCHING, java, java_class_path

MAIN = "org.apache.pulsar.testclient.PulsarPerfTestTool"
TIMEOUT_S = 120
MESSAGES = 2000
TRANSACTIONS = 20

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("java"), WITH_FETCHING]


def perf(platform: MagnetarProcess, directory: Path, command: str, *options: str) -> str:
    """What one of its commands printed."""
    configuration = directory / "client.conf"
    configuration.write_text(f"webServiceUrl={platform.web_url}\nbrokerServiceUrl={platform.service_url}\n")
    words = [MAIN, str(configuration), command, "-u", platform.service_url, *options]
    line = java(java_class_path(), *words)
    line.insert(1, "-Dorg.slf4j.simpleLogger.log.org.apache.pulsar.testclient=info")
    done = subprocess.run(  # It leaves histograms where it runs.
        line, cwd=directory, capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL
    )
    return done.stdout + done.stderr


def told(printed: str, expression: str) -> int:
    """The largest figure: it tells now and then how far it is, and at the end of everything."""
    found = re.findall(rf"(\d+) {expression}", printed)
    assert found, printed[-2000:]
    return max(map(int, found))


def test_pulsar_perf(platform: MagnetarProcess, tmp_path: Path) -> None:
    topic = "persistent://public/default/perf"
    count = str(MESSAGES)
    printed = perf(platform, tmp_path, "produce", "-r", "5000", "-m", count, "-s", "100", topic)
    assert told(printed, "records sent") >= MESSAGES
    printed = perf(platform, tmp_path, "consume", "-m", count, "-sp", "Earliest", topic)
    assert told(printed, "records received") >= MESSAGES
    assert "ack failed 0 msg" in printed
    printed = perf(platform, tmp_path, "read", "-n", count, topic)
    assert told(printed, "records received") >= MESSAGES
    printed = perf(
        platform,
        tmp_path,
        "transaction",
        *("-au", platform.web_url, "-ntxn", str(TRANSACTIONS), "-nmp", "5", "-nmc", "5", "-np", "1"),
        *("--topics-c", topic, "--topics-p", f"{topic}-out", "-sp", "Earliest"),
    )
    assert told(printed, "transaction executed") >= TRANSACTIONS
    assert told(printed, "transaction end successfully") >= TRANSACTIONS
    for failed in (
        "transaction open failed",
        "transaction end failed",
        "message ack failed",
        "message send failed",
    ):
        assert told(printed, failed) == 0
