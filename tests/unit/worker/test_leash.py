"""Processes that may not outlive a lease."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
import time

from magnetar.environment.clock import SystemClock
from magnetar.metadata.memory import MemoryEnsemble
from magnetar.worker.leash import Leash


class Leased:
    """A store whose lease a test sets."""

    def __init__(self) -> None:
        self.session = MemoryEnsemble().connect()
        self.lease_until = math.inf

    def __getattr__(self, name: str) -> object:
        return getattr(self.session, name)


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], process_group=0)


async def ends(process: subprocess.Popen[bytes]) -> None:
    await asyncio.to_thread(process.wait, 5)


async def test_what_runs_ends_with_the_lease_though_the_worker_sleeps() -> None:
    store, told = Leased(), asyncio.Event()
    store.lease_until = time.monotonic() + 0.5
    leash = Leash(store, SystemClock(), told.set)  # type: ignore[arg-type]
    leash.start()
    process = sleeper()
    leash.began(process.pid)
    time.sleep(1.0)  # noqa: ASYNC251  # As a stopped process would: nothing here can run.
    assert process.wait(1) == -9
    leash.ended(process.pid)
    late = sleeper()
    leash.began(late.pid)
    await ends(late)
    await asyncio.sleep(0.1)
    assert not told.is_set()
    store.lease_until = time.monotonic() + 60
    async with asyncio.timeout(5):
        await told.wait()
    lives = sleeper()
    leash.began(lives.pid)
    await asyncio.sleep(0.2)
    assert lives.poll() is None
    await leash.stop()
    await ends(lives)  # The guard takes along what is left.


async def test_a_guard_that_was_killed_is_replaced() -> None:
    store = Leased()
    store.lease_until = time.monotonic() + 1.0
    leash = Leash(store, SystemClock(), lambda: None)  # type: ignore[arg-type]
    leash.start()
    first = sleeper()
    leash.began(first.pid)
    assert leash._guard is not None
    leash._guard.kill()
    leash._guard.wait()
    second = sleeper()
    leash.began(second.pid)
    await ends(first)
    await ends(second)
    await leash.stop()


async def test_nothing_is_guarded_where_nobody_can_take_over() -> None:
    leash = Leash(Leased(), SystemClock(), lambda: None)  # type: ignore[arg-type]
    leash.start()
    leash.began(12345)
    assert leash._guard is None
    await leash.stop()
