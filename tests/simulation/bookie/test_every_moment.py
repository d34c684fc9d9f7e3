"""The power is cut after every single disk operation of a bookie's first start, first entries, roll-over of the journal,
checkpoints, collection of garbage and stop; and a process is killed there. Each time it starts again, keeps what it had
acknowledged, and can be written to.

A kill leaves all that was written, a power cut only what was synced: `RecordingDisk` rebuilds both.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.garbage import GarbageCollector
from magnetar.environment.recording import RecordingDisk
from magnetar.protocol.bookie import BookieStatus
from tests.unit.bookie.disks import WrappedDisk
from tests.unit.bookie.workbench import KIB, add, crash, make_bookie, whole

OK = BookieStatus.OK
PAYLOAD = b"x" * 3000


class KeepsAll(random.Random):
    """A coin for kills: the page cache outlives the process."""

    def random(self) -> float:
        return 0.0


class WithoutSyncs(WrappedDisk):
    """For those that only look what is left: a hundred starts are quicker so."""

    def before_sync(self, path: Path) -> bool:
        return False

    def before_sync_directory(self, path: Path) -> bool:
        return False


class Life:
    """A bookie on a recording disk, and which entries were acknowledged when."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.recorder = RecordingDisk(directory)
        self.acknowledged: dict[tuple[int, int], int] = {}
        self.forgotten_at: dict[int, int] = {}
        self._directory = directory

    def bookie(self, directory: Path | None = None) -> Bookie:
        return make_bookie(
            directory or self._directory,
            disk=WithoutSyncs() if directory else self.recorder,
            journal_segment_bytes=16 * KIB,
            journal_first_bytes=8 * KIB,
            entry_log_bytes=16 * KIB,
        )

    async def add(self, bookie: Bookie, ledger_id: int, entries: range) -> None:
        for entry_id in entries:
            assert await add(bookie, ledger_id, entry_id, PAYLOAD) is OK
            self.acknowledged[ledger_id, entry_id] = self.recorder.mark()

    async def forget(self, bookie: Bookie, ledger_id: int) -> None:
        self.forgotten_at[ledger_id] = self.recorder.mark()
        live = bookie.ledgers() - {ledger_id}

        async def listing() -> set[int]:
            return live

        await GarbageCollector(bookie, listing).collect()

    async def judge(self, at: int, image: Path) -> None:
        """A bookie starts on `image`, has what it must, takes an entry, and now and then starts once more."""
        for again in (False, True)[: 1 + (at % 4 == 0)]:
            bookie = self.bookie(image)
            await bookie.start()
            for (ledger_id, entry_id), told_at in self.acknowledged.items():
                if told_at <= at < self.forgotten_at.get(ledger_id, 1 << 60):
                    read = await bookie.read_entry(ledger_id, entry_id)
                    assert read.entry == whole(ledger_id, entry_id, PAYLOAD), (at, ledger_id, entry_id, again)
            if again:
                assert (await bookie.read_entry(99, 0)).status is OK, at
            else:
                assert await add(bookie, 99, 0) is OK, at
            await crash(bookie)
        shutil.rmtree(image)


async def first_start(life: Life) -> None:
    bookie = life.bookie()
    await bookie.start()
    await crash(bookie)


async def first_entries_and_stop(life: Life) -> None:
    bookie = life.bookie()
    await bookie.start()
    await life.add(bookie, 1, range(3))
    await bookie.stop()
    bookie = life.bookie()
    await bookie.start()
    await bookie.stop()


async def journal_rolls(life: Life) -> None:
    bookie = life.bookie()
    await bookie.start()
    await life.add(bookie, 1, range(12))
    await bookie.checkpoint()
    await life.add(bookie, 1, range(12, 24))
    await crash(bookie)


async def checkpoints_and_garbage(life: Life) -> None:
    bookie = life.bookie()
    await bookie.start()
    for turn in range(4):
        for ledger_id in (1, 2):
            await life.add(bookie, ledger_id, range(2 * turn, 2 * turn + 2))
        await bookie.checkpoint()
    await life.forget(bookie, 2)
    await life.add(bookie, 1, range(8, 10))
    await bookie.stop()


COINS: dict[str, Callable[[int], random.Random | None]] = {
    "power cut": lambda at: None,
    "power cut, some of it kept": random.Random,
    "kill": lambda at: KeepsAll(),
}


@pytest.mark.parametrize("end", COINS)
@pytest.mark.parametrize(
    "life_of", [first_start, first_entries_and_stop, journal_rolls, checkpoints_and_garbage]
)
async def test_it_may_end_after_any_operation(
    tmp_path: Path, life_of: Callable[[Life], Awaitable[None]], end: str
) -> None:
    life = Life(tmp_path / "bookie")
    await life_of(life)
    last = life.recorder.mark()
    # The short lives and the worst end at every operation; the other ends of a long life at every third.
    for at in range(0, last + 1, 1 if last < 60 or end == "power cut" else 3):
        image = tmp_path / "image"
        life.recorder.worst_image(at, image, coin=COINS[end](at))
        await life.judge(at, image)
