"""A real bookie process is killed, at named places and at random moments, and nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from magnetar.ledger.bookie_client import BookieClient, BookieClientSettings
from magnetar.protocol.bookie import AddFlags, BookieAddress, BookieStatus
from tests.unit.bookie.workbench import KEY, entry

pytestmark = pytest.mark.integration

OK = BookieStatus.OK
ROOT = Path(__file__).parents[3]
FENCED, WRITTEN, DEAD = 2, 3, 10
"""Ledgers: one to be fenced, one to be written to; those from DEAD on are garbage from the day they are written."""
WINDOW = 64


class Process:
    """A running bookie process and a client of it."""

    def __init__(self, process: asyncio.subprocess.Process, client: BookieClient) -> None:
        self.process = process
        self.client = client

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)


@asynccontextmanager
async def bookie_process(
    directory: Path, crash_point: str | None = None, *, mood: str = "restless"
) -> AsyncIterator[Process | None]:
    """A bookie process; None if it died, as it was told to, before it served."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if crash_point is not None:
        environment["MAGNETAR_CRASH_POINT"] = crash_point
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.integration.bookie.bookie_process",
        str(directory),
        mood,
        str(FENCED),
        str(WRITTEN),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=environment,
        cwd=ROOT,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        async with asyncio.timeout(30):
            line = await process.stdout.readline()
        if not line:
            assert await process.wait() == -signal.SIGKILL
            yield None
            return

        async def resolve() -> BookieAddress:
            return BookieAddress(f"127.0.0.1:{int(line)}", "1")

        client = BookieClient(
            "b1", resolve, dice=random.Random(1), settings=BookieClientSettings(request_timeout_s=20)
        )
        yield Process(process, client)
        await client.close()
        process.stdin.close()
        async with asyncio.timeout(30):
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def payload(ledger_id: int, entry_id: int) -> bytes:
    return random.Random(f"{ledger_id}:{entry_id}").randbytes(200 + entry_id * 37 % 3000)


class Acknowledged:
    """What the bookie has promised, over all its lives."""

    def __init__(self) -> None:
        self.entries: set[tuple[int, int]] = set()
        self.next = defaultdict[int, int](int)
        self.fenced = False
        self.lac = -1
        self._count = 0
        self.in_flight = 0
        self._refill = True
        self._idle = asyncio.Event()
        self._awaited = 0
        self._reached = asyncio.Event()

    async def load(self, running: Process, stop: asyncio.Event) -> None:
        """Keep adds in flight until the process is gone, or until `stop` is set and then it is gone."""
        self._refill = True
        self._idle.clear()
        for _ in range(WINDOW):
            self._add(running.client)
        gone = asyncio.ensure_future(running.process.wait())
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait({gone, stopping}, return_when=asyncio.FIRST_COMPLETED)
        self._refill = False
        stopping.cancel()
        await self._idle.wait()
        await gone

    def _add(self, client: BookieClient) -> None:
        self._count += 1
        ledger_id = WRITTEN if self._count % 4 == 0 else DEAD + self._count // 100
        entry_id = self.next[ledger_id]
        self.next[ledger_id] += 1
        self.in_flight += 1

        def done(status: BookieStatus) -> None:
            self.in_flight -= 1
            if status is OK:
                self.entries.add((ledger_id, entry_id))
                if self._refill:
                    self._add(client)
            if len(self.entries) >= self._awaited:
                self._reached.set()
            if not self.in_flight:
                self._idle.set()

        parts = entry(ledger_id, entry_id, payload(ledger_id, entry_id), lac=-1)
        client.add_entry(ledger_id, entry_id, parts, AddFlags.NONE, KEY, done)

    async def reach(self, more: int) -> None:
        """Wait until so many more entries are acknowledged."""
        self._awaited = len(self.entries) + more
        self._reached.clear()
        async with asyncio.timeout(30):
            await self._reached.wait()

    async def explicit_lac(self, client: BookieClient) -> None:
        lac = self.next[WRITTEN]
        if await client.write_lac(WRITTEN, lac, KEY) is OK:
            self.lac = lac

    async def fence(self, client: BookieClient) -> None:
        read = await client.read_lac(FENCED, fence=True, master_key=KEY)
        self.fenced = self.fenced or read.status is OK

    async def expect(self, client: BookieClient) -> None:
        """Everything promised is there, save what is garbage."""
        for ledger_id, entry_id in sorted(self.entries):
            if ledger_id >= DEAD:
                continue
            read = await client.read_entry(ledger_id, entry_id)
            expected = b"".join(entry(ledger_id, entry_id, payload(ledger_id, entry_id), lac=-1))
            assert (read.status, read.entry) == (OK, expected), (ledger_id, entry_id)
        if self.fenced:
            answered: asyncio.Future[BookieStatus] = asyncio.get_running_loop().create_future()
            client.add_entry(FENCED, 0, entry(FENCED, 0), AddFlags.NONE, KEY, answered.set_result)
            assert await answered is BookieStatus.FENCED
        if self.lac >= 0:
            assert (await client.read_lac(WRITTEN)).lac >= self.lac


POINTS = [
    "bookie.add.cached:300",
    "bookie.journal.before_sync:20",
    "bookie.journal.after_sync:20",
    "bookie.flush.middle:4",
    "bookie.flush.log_synced:4",
    "bookie.flush.index_synced:4",
    "bookie.mark.before_write:4",
    "bookie.mark.after_write:4",
    "bookie.compaction.copied:1",
    "bookie.compaction.middle:1",
    "bookie.compaction.before_remove:1",
]


async def test_a_kill_at_every_crash_point_loses_nothing(tmp_path: Path) -> None:
    """One directory lives through all of them, twice over where the first death came at start."""
    promised = Acknowledged()
    for point in POINTS:
        async with bookie_process(tmp_path, point) as running:
            assert running is not None, "the point lies behind the start"
            await promised.fence(running.client)
            await promised.explicit_lac(running.client)
            before = len(promised.entries)
            async with asyncio.timeout(60):
                await promised.load(running, asyncio.Event())
            assert running.process.returncode == -signal.SIGKILL, point
            assert len(promised.entries) > before, "something was acknowledged in this life"
        async with bookie_process(tmp_path) as running:
            assert running is not None
            await promised.expect(running.client)


async def test_a_kill_during_recovery_loses_nothing(tmp_path: Path) -> None:
    """A journal full of entries is replayed by a process with a small cache, which dies on the way."""
    promised = Acknowledged()
    for point in ("bookie.flush.middle:2", "bookie.flush.log_synced:2", "bookie.flush.index_synced:3"):
        async with bookie_process(tmp_path, mood="lazy") as running:
            assert running is not None
            loading = asyncio.ensure_future(promised.load(running, asyncio.Event()))
            await promised.reach(600)
            running.kill()
            await loading
        async with bookie_process(tmp_path, point) as running:
            assert running is None, "it dies while it starts"
        async with bookie_process(tmp_path, mood="lazy") as running:
            assert running is not None
            await promised.expect(running.client)


async def test_kills_under_load_at_random_moments_lose_nothing(tmp_path: Path) -> None:
    dice = random.Random(5)
    promised = Acknowledged()
    in_flight = 0
    for _ in range(10):
        async with bookie_process(tmp_path) as running:
            assert running is not None
            await promised.expect(running.client)
            await promised.explicit_lac(running.client)
            loading = asyncio.ensure_future(promised.load(running, asyncio.Event()))
            await asyncio.sleep(dice.uniform(0.05, 0.3))
            in_flight += promised.in_flight
            running.kill()
            await loading
    assert in_flight > 0, "it was never killed while idle"
    assert len(promised.entries) > 500
    async with bookie_process(tmp_path) as running:
        assert running is not None
        await promised.expect(running.client)


async def test_a_process_stops_cleanly(tmp_path: Path) -> None:
    promised = Acknowledged()
    async with bookie_process(tmp_path) as running:
        assert running is not None
        stop = asyncio.Event()
        loading = asyncio.ensure_future(promised.load(running, stop))
        await promised.reach(200)
        stop.set()
        assert running.process.stdin is not None
        running.process.stdin.close()
        await loading
        assert running.process.returncode == 0
    async with bookie_process(tmp_path) as running:
        assert running is not None
        await promised.expect(running.client)
