"""Components' processes, for real: how they start, what is heard of them, and that none outlives the worker."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from magnetar.worker.launching import ExitReport, LaunchPlan
from magnetar.worker.log_file import LogFile
from magnetar.worker.process import ProcessLauncher

pytestmark = pytest.mark.integration

HOST = """
    import json, os, signal, subprocess, sys, time

    with open(sys.argv[sys.argv.index("--spec") + 1]) as file:
        spec = json.load(file)
    print("starting", file=sys.stderr, flush=True)
    if "exit" in spec:
        print(spec["last_words"], file=sys.stderr)
        sys.exit(spec["exit"])
    if spec.get("stubborn"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        grandchild = subprocess.Popen(["sleep", "300"])
        print(json.dumps({"ready": True, "control": {"0": grandchild.pid}}), flush=True)
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        print("nonsense\\n" + json.dumps({"ready": True, "control": {"0": 1234}}), flush=True)
    if spec.get("ends"):
        print(json.dumps({"ended": True}), flush=True)
    while True:
        time.sleep(0.01)
"""


@dataclass
class Heard:
    """What a process was heard to say."""

    control: Mapping[int, int] | None = None
    ended: bool = False
    report: ExitReport | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def ready(self, control: Mapping[int, int]) -> None:
        self.control = control
        self.changed.set()

    def input_ended(self) -> None:
        self.ended = True
        self.changed.set()

    def exited(self, report: ExitReport) -> None:
        assert self.report is None, "told once"
        self.report = report
        self.changed.set()

    async def until(self, condition: Callable[[Heard], Any]) -> None:
        async with asyncio.timeout(20):
            while not condition(self):
                self.changed.clear()
                await self.changed.wait()


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., LaunchPlan]:
    (tmp_path / "pretended_host.py").write_text(textwrap.dedent(HOST))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    log = LogFile(tmp_path / "logs" / "host.log", bytes_max=1000, kept=2)

    def make(module: str = "pretended_host", **spec: Any) -> LaunchPlan:
        return LaunchPlan(module, spec, tmp_path / "work", log)

    return make


def exists(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def command_of(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


def until_gone(pid: int) -> None:
    deadline = time.monotonic() + 10
    while exists(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.01)


async def test_it_says_when_it_is_ready_and_finishes_when_asked(plan: Callable[..., LaunchPlan]) -> None:
    heard = Heard()
    child = ProcessLauncher().launch(plan(ends=True), heard)
    await heard.until(lambda heard: heard.ended)
    assert heard.control == {0: 1234}
    assert child.pid is not None
    assert command_of(child.pid)[1:3] == [b"-m", b"pretended_host"], "nothing of the lifeline is left"
    assert os.getpgid(child.pid) == child.pid
    child.terminate()
    await heard.until(lambda heard: heard.report)
    assert heard.report == ExitReport("it exited with code 0: starting")
    assert child.pid is None
    child.kill()


@pytest.mark.parametrize(("code", "hopeless"), [(3, False), (78, True)])
async def test_a_failure_comes_with_its_last_words(
    plan: Callable[..., LaunchPlan], code: int, hopeless: bool
) -> None:
    heard = Heard()
    ProcessLauncher().launch(plan(exit=code, last_words="there is no Java here"), heard)
    await heard.until(lambda heard: heard.report)
    assert heard.report == ExitReport(f"it exited with code {code}: there is no Java here", hopeless)


async def test_a_module_that_is_not_there_is_told(plan: Callable[..., LaunchPlan]) -> None:
    heard = Heard()
    ProcessLauncher().launch(plan(module="nosuchmodule"), heard)
    await heard.until(lambda heard: heard.report)
    assert heard.report is not None
    assert "No module named nosuchmodule" in heard.report.reason


async def test_one_that_does_not_listen_is_killed_with_all_its_group(plan: Callable[..., LaunchPlan]) -> None:
    heard = Heard()
    child = ProcessLauncher().launch(plan(stubborn=True), heard)
    await heard.until(lambda heard: heard.control)
    assert heard.control is not None
    child.terminate()
    child.kill()
    await heard.until(lambda heard: heard.report)
    assert heard.report is not None
    assert heard.report.reason.startswith("it was killed by SIGKILL")
    until_gone(heard.control[0])


async def test_one_that_is_stopped_before_it_began_never_begins(plan: Callable[..., LaunchPlan]) -> None:
    heard = Heard()
    ProcessLauncher().launch(plan(), heard).terminate()
    await heard.until(lambda heard: heard.report)
    assert heard.report == ExitReport("it was stopped before it began")


async def test_a_place_that_cannot_be_written_to_is_told(
    plan: Callable[..., LaunchPlan], tmp_path: Path
) -> None:
    (tmp_path / "work").write_text("a file where a directory belongs")
    heard = Heard()
    ProcessLauncher().launch(plan(), heard)
    await heard.until(lambda heard: heard.report)
    assert heard.report is not None
    assert "could not be started" in heard.report.reason


WORKER = """
    import asyncio, sys
    from pathlib import Path
    from magnetar.worker.launching import LaunchPlan
    from magnetar.worker.log_file import LogFile
    from magnetar.worker.process import ProcessLauncher

    class Events:
        def ready(self, control): print(child.pid, flush=True)
        def input_ended(self): pass
        def exited(self, report): print(report, flush=True)

    async def main():
        global child
        root = Path(sys.argv[1])
        log = LogFile(root / "logs" / "host.log", 1000, 2)
        child = ProcessLauncher().launch(LaunchPlan("pretended_host", {}, root / "work", log), Events())
        await asyncio.Event().wait()

    asyncio.run(main())
"""


def test_nothing_is_left_when_the_worker_is_killed(plan: Callable[..., LaunchPlan], tmp_path: Path) -> None:
    plan()
    script = tmp_path / "worker.py"
    script.write_text(textwrap.dedent(WORKER))
    with subprocess.Popen([sys.executable, script, tmp_path], stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        try:
            pid = int(worker.stdout.readline())
            assert exists(pid)
        finally:
            worker.send_signal(signal.SIGKILL)
    until_gone(pid)


def test_a_log_is_turned_over_while_it_is_written_and_keeps_so_many(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "logs" / "host.log", bytes_max=100, kept=2)
    descriptor = log.open()
    try:
        for number in range(5):
            os.write(descriptor, f"line {number}\n".encode() * 20)
            log.turn_over()
        os.write(descriptor, b"still here\n")
    finally:
        os.close(descriptor)
    assert sorted(path.name for path in log.path.parent.iterdir()) == ["host.log", "host.log.1", "host.log.2"]
    assert log.path.read_text() == "still here\n"
    assert log.path.with_name("host.log.1").read_text() == "line 4\n" * 20
    assert log.tail() == ["still here"]
    assert LogFile(tmp_path / "none.log", 1, 1).tail() == []
