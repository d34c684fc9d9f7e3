"""Real user processes, without a platform: what they compute, and how they fail."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import zipfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from magnetar.environment.clock import SystemClock
from magnetar.functions.packages import inspect_package, unpack
from magnetar.functions.process.job import Job
from magnetar.functions.process.members import join_members, sequence_fields, split_batch
from magnetar.functions.process.wire import (
    Entry,
    EntryFlag,
    Result,
    ToHost,
    ToProcess,
    entry_frame,
    read_result,
)
from magnetar.instance.errors import UserCodeRefused, UserProcessLost
from magnetar.instance.keeper import ProcessKeeper, ProcessPlan
from magnetar.instance.statistics import Statistics
from magnetar.instance.user_process import UserProcess

pytestmark = pytest.mark.integration
TOPIC = "persistent://public/default/in"
DEADLINE_S = 30.0

SHOUT = """
from pulsar import Function

class Shout(Function):
    def __init__(self):
        self.calls = 0

    def process(self, input, context):
        self.calls += 1
        if input == "bad":
            raise ValueError("cannot shout that")
        print("shouting", input)
        context.record_metric("length", len(input))
        return f"{input.upper()} {context.get_message_key()}"
"""


class Process:
    """A user process under test: frames it sends are kept, and can be waited for."""

    def __init__(self, job: Job, directory: Path) -> None:
        self.frames: list[tuple[int, bytes]] = []
        self.lost = ""
        self._changed = asyncio.Event()
        self._serial = 0
        self.words = directory / "last-words"
        self.process = UserProcess(
            job,
            last_words=self.words,
            runtime_flags="",
            on_frame=self._on_frame,
            on_lost=self._on_lost,
            on_broken=self._on_broken,
        )

    def _on_frame(self, kind: int, body: memoryview) -> None:
        self.frames.append((kind, bytes(body)))
        self._changed.set()

    def _on_broken(self, error: Exception) -> None:
        raise AssertionError("frames are only kept here") from error

    def _on_lost(self, reason: str) -> None:
        self.lost = reason
        self._changed.set()

    async def until(self, condition: Callable[[], Any]) -> Any:
        async with asyncio.timeout(DEADLINE_S):
            while not (found := condition()):
                self._changed.clear()
                await self._changed.wait()
        return found

    def send(self, *payloads: bytes, key: bytes = b"") -> int:
        """Send an entry of these messages; returns its serial."""
        if self._serial == 0:
            self.process.send_json(ToProcess.TOPIC, {"number": 1, "name": TOPIC, "configured": "in"})
        self._serial += 1
        before = b"\x12" + bytes((len(key),)) + key if key else b""
        count = len(payloads)
        data = join_members(payloads, [before] * count, sequence_fields(0, count))
        entry = Entry(
            self._serial, 1, self._serial, 5, self._serial, -1, 100, count, -1, (), EntryFlag.NONE, data
        )
        self.process.send(entry_frame(entry), data)
        return self._serial

    async def result(self, serial: int) -> Result:
        def find() -> Result | None:
            for kind, body in self.frames:
                if kind == ToHost.RESULT:
                    result = read_result(memoryview(body))
                    if result.serial == serial:
                        return result
            return None

        found = await self.until(find)
        assert isinstance(found, Result)
        return found


def job_of(directory: Path, source: str, **changes: Any) -> Job:
    package = directory / "code.py"
    package.write_text(source)
    fields: dict[str, Any] = {
        "component": "function",
        "tenant": "public",
        "namespace": "default",
        "name": "shout",
        "instance_id": 0,
        "num_instances": 1,
        "version": 1,
        "package": str(package),
        "kind": "py",
        "class_name": "shout.Shout",
        "inputs": ("in",),
        "output": "persistent://public/default/out",
        "log_file": str(directory / "logs" / "shout-0.log"),
        "beat_every_s": 0.1,
    }
    return Job(**{**fields, **changes})


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[[Job], Any]]:
    started: list[Process] = []

    async def begin(job: Job) -> Process:
        process = Process(job, tmp_path)
        started.append(process)
        await process.process.start()
        return process

    yield begin
    for process in started:
        await process.process.stop(5.0)


async def test_a_function_for_the_official_sdk_runs_without_the_official_client(
    start: Callable[[Job], Any], tmp_path: Path
) -> None:
    process = await start(job_of(tmp_path, SHOUT))
    result = await process.result(process.send(b"one", b"bad", b"two", key=b"k"))
    (group,) = result.groups
    assert list(group.ordinals) == [0, 2]
    assert split_batch(group.payload, 2)[0] == [b"ONE k", b"TWO k"]
    (failure,) = result.failures
    assert failure.ordinal == 1
    assert failure.error == "ValueError: cannot shout that"
    assert "in process" in failure.traceback
    await process.process.stop(5.0)
    metrics = [json.loads(body) for kind, body in process.frames if kind == ToHost.METRICS]
    assert metrics == [{"length": [6.0, 2.0]}]
    assert "shouting one" in (tmp_path / "logs" / "shout-0.log").read_text()


async def test_it_sees_nothing_of_the_platform(start: Callable[[Job], Any], tmp_path: Path) -> None:
    source = "import sys\nimport magnetar\n\ndef process(input):\n"
    source += "    try:\n        import magnetar.client\n    except ImportError:\n"
    source += "        return ','.join(sorted(m for m in sys.modules if m.partition('.')[0] in ('google', 'grpc', 'asyncio')))\n"
    source += "    return 'the platform'\n"
    process = await start(job_of(tmp_path, source, class_name="look"))
    result = await process.result(process.send(b"x"))
    assert split_batch(result.groups[0].payload, 1)[0] == [b""]


async def test_an_ordered_input_stops_at_its_failure_and_goes_on_where_it_is_told(
    start: Callable[[Job], Any], tmp_path: Path
) -> None:
    process = await start(job_of(tmp_path, SHOUT, ordered=True))
    process.process.send_json(ToProcess.TOPIC, {"number": 1, "name": TOPIC, "configured": "in"})
    data = join_members([b"a", b"bad", b"c"], [b""] * 3, [b""] * 3)
    for serial, generation, ordinals in ((1, 0, ()), (2, 0, ()), (3, 1, (2,))):
        entry = Entry(serial, 1, generation, 5, 5, -1, 0, 3, -1, ordinals, EntryFlag.NONE, data)
        process.process.send(entry_frame(entry), data)
    first, stale, again = [await process.result(serial) for serial in (1, 2, 3)]
    assert first.ran_through == 2
    assert list(first.groups[0].ordinals) == [0]
    assert stale.flags
    assert not stale.groups
    assert list(again.groups[0].ordinals) == [2]


async def test_a_zip_in_apaches_layout_with_data_and_a_wheel(
    start: Callable[[Job], Any], tmp_path: Path
) -> None:
    wheel = tmp_path / "dep-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("dep.py", "WORD = 'dependency'\n")
    package = tmp_path / "pack.zip"
    with zipfile.ZipFile(package, "w") as archive:
        archive.writestr(
            "pack/src/reader.py",
            "import pkgutil, dep\nfrom pulsar import Function\n\nclass Reader(Function):\n"
            "    def process(self, input, context):\n"
            "        return pkgutil.get_data(__name__, 'data.txt') + dep.WORD.encode()\n",
        )
        archive.writestr("pack/src/data.txt", "data and ")
        archive.write(wheel, "pack/deps/dep-1.0-py3-none-any.whl")
    info = inspect_package(package, "reader.Reader")
    paths = tuple(unpack(info, tmp_path / "unpacked"))
    job = job_of(tmp_path, "", kind="zip", package=str(package), class_name="reader.Reader", paths=paths)
    process = await start(job)
    result = await process.result(process.send(b"x"))
    assert split_batch(result.groups[0].payload, 1)[0] == [b"data and dependency"]


async def test_a_cloudpickled_function(start: Callable[[Job], Any], tmp_path: Path) -> None:
    import cloudpickle

    base = 40
    path = tmp_path / "add.cloudpickle"
    path.write_bytes(cloudpickle.dumps(lambda number: number + base))
    job = job_of(tmp_path, "", kind="cloudpickle", package=str(path), class_name="cloudpickle.function")
    process = await start(job)
    result = await process.result(process.send(b"2", b"3"))
    assert split_batch(result.groups[0].payload, 2)[0] == [b"42", b"43"]


@pytest.mark.parametrize(
    ("source", "class_name", "reason", "permanent"),
    [
        ("import no_such_module\n", "x.Y", "No module named 'no_such_module'", True),
        ("def f(:\n", "x.Y", "SyntaxError", True),
        ("x = 1\n", "x.Y", "'x.Y' has no process", True),
        (
            "class Y:\n    def __init__(self):\n        raise OSError('no database')\n    def process(self, i, c): ...\n",
            "x.Y",
            "OSError: no database",
            False,
        ),
        ("raise SystemExit(3)\n", "x.Y", "SystemExit: 3", False),
    ],
)
async def test_a_package_that_does_not_load_says_why(
    tmp_path: Path, source: str, class_name: str, reason: str, permanent: bool
) -> None:
    process = Process(job_of(tmp_path, source, class_name=class_name), tmp_path)
    with pytest.raises(UserCodeRefused) as refused:
        await process.process.start()
    assert reason in str(refused.value)
    assert refused.value.permanent is permanent


async def test_a_process_that_dies_while_loading_is_lost_with_its_last_words(tmp_path: Path) -> None:
    source = "import os\nos.write(2, b'last words')\nos._exit(7)\n"
    process = Process(job_of(tmp_path, source), tmp_path)
    with pytest.raises(UserProcessLost, match="exit status 7: last words"):
        await process.process.start()


async def test_a_crash_is_told_with_its_signal_and_where(start: Callable[[Job], Any], tmp_path: Path) -> None:
    source = "import ctypes\n\ndef process(input):\n    ctypes.string_at(0)\n"
    process = await start(job_of(tmp_path, source, class_name="crash"))
    process.send(b"x")
    await process.until(lambda: process.lost)
    assert "SIGSEGV" in process.lost
    assert "code.py" in process.lost


async def test_it_ends_with_its_host(tmp_path: Path) -> None:
    """Even while user code sleeps in a loop that swallows everything."""
    source = "import os, time\n\ndef process(input):\n    while True:\n        time.sleep(60)\n"
    job = job_of(tmp_path, source, class_name="sleep")
    program = (
        "import asyncio, json, sys\nfrom pathlib import Path\n"
        "from magnetar.functions.process.job import Job\nfrom magnetar.instance.user_process import UserProcess\n"
        "async def main():\n"
        "    job = Job.from_json(json.loads(sys.argv[1]))\n"
        "    p = UserProcess(job, last_words=Path(sys.argv[2]), runtime_flags='', on_frame=print, on_lost=print, on_broken=print)\n"
        "    await p.start()\n    print(p.pid, flush=True)\n    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    host = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        program,
        json.dumps(job.to_json()),
        str(tmp_path / "words"),
        stdout=asyncio.subprocess.PIPE,
    )
    assert host.stdout is not None
    async with asyncio.timeout(DEADLINE_S):
        user_pid = int(await host.stdout.readline())
        handle = os.pidfd_open(user_pid)
        host.kill()
        await host.wait()
        gone = asyncio.Event()
        asyncio.get_running_loop().add_reader(handle, gone.set)
        await gone.wait()
    asyncio.get_running_loop().remove_reader(handle)
    os.close(handle)


class Owner:
    """Whose process the keeper keeps, in these tests."""

    def __init__(self) -> None:
        self.ready = asyncio.Semaphore(0)
        self.lost: asyncio.Queue[str] = asyncio.Queue()

    def process_ready(self) -> None:
        self.ready.release()

    def process_frame(self, kind: int, body: memoryview) -> None: ...

    def process_lost(self, reason: str) -> None:
        self.lost.put_nowait(reason)

    def session_failed(self, error: Exception) -> None:
        raise error


async def test_a_hung_function_is_killed_and_told_where_it_hung(tmp_path: Path) -> None:
    source = "import threading\n\ndef process(input):\n    threading.Event().wait()\n"
    job = job_of(tmp_path, source, class_name="hang")
    owner, statistics = Owner(), Statistics()
    keeper = ProcessKeeper(
        ProcessPlan(job, tmp_path / "words", hang_limit_s=0.5), owner, statistics, SystemClock()
    )
    running = asyncio.create_task(keeper.run())
    try:
        async with asyncio.timeout(DEADLINE_S):
            await owner.ready.acquire()
            assert keeper.process is not None
            keeper.process.send_json(ToProcess.TOPIC, {"number": 1, "name": TOPIC, "configured": "in"})
            data = join_members([b"x"], [b""], [b""])
            entry = Entry(1, 1, 0, 5, 5, -1, 0, 1, -1, (), EntryFlag.NONE, data)
            keeper.process.send(entry_frame(entry), data)
            keeper.watchdog.began(1, SystemClock().monotonic())
            keeper.look_after()
            reason = await owner.lost.get()
            assert "had not moved for" in reason
            assert 'code.py", line 4 in process' in reason
            await owner.ready.acquire()  # It is back.
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert statistics.restarts == 1


async def test_a_process_killed_from_outside_is_started_again(tmp_path: Path) -> None:
    owner, statistics = Owner(), Statistics()
    job = job_of(tmp_path, SHOUT)
    keeper = ProcessKeeper(ProcessPlan(job, tmp_path / "words"), owner, statistics, SystemClock())
    running = asyncio.create_task(keeper.run())
    try:
        async with asyncio.timeout(DEADLINE_S):
            for _ in range(2):
                await owner.ready.acquire()
                assert keeper.process is not None
                assert keeper.process.pid is not None
                os.kill(keeper.process.pid, signal.SIGKILL)
                assert "SIGKILL" in await owner.lost.get()
            await owner.ready.acquire()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert statistics.restarts == 2
