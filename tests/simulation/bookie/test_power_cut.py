"""Whatever a bookie has acknowledged survives the worst power cut, at any moment.

A random schedule runs on a disk that records every operation. For every acknowledgement, and for moments in between, the
worst image that a power cut may leave is built, a bookie is started on it, and everything acknowledged until then is
asked for. That the test can fail is shown with disks that lie.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.errors import BookieError
from magnetar.bookie.garbage import GarbageCollector
from magnetar.environment.disk import Disk, DiskFile
from magnetar.environment.recording import RecordingDisk
from magnetar.protocol.bookie import AddFlags, BookieStatus
from tests.unit.bookie.disks import WrappedDisk
from tests.unit.bookie.workbench import KEY, KIB, begin_add, crash, entry, make_bookie

OK = BookieStatus.OK
LEDGERS = range(1, 6)
SEEDS = range(4)


class Lost(AssertionError):
    """Something acknowledged is not there."""


@dataclass
class Promises:
    """What was acknowledged, each with the number of disk operations at that moment."""

    entries: dict[tuple[int, int], tuple[int, bytes]] = field(default_factory=dict)
    fences: dict[int, int] = field(default_factory=dict)
    lacs: list[tuple[int, int, int]] = field(default_factory=list)
    deleted: dict[int, int] = field(default_factory=dict)
    """When the deletion of a ledger began: nothing of it is promised from then on."""
    moments: set[int] = field(default_factory=set)

    def forgotten(self, ledger_id: int, at: int) -> bool:
        return self.deleted.get(ledger_id, at + 1) <= at

    async def expect(self, bookie: Bookie, at: int) -> None:
        """Raises Lost unless `bookie` keeps everything acknowledged up to the moment `at`."""
        for (ledger_id, entry_id), (promised_at, stored) in self.entries.items():
            if promised_at > at or self.forgotten(ledger_id, at):
                continue
            read = await bookie.read_entry(ledger_id, entry_id)
            if (read.status, read.entry) != (OK, stored):
                raise Lost(
                    f"entry {ledger_id}:{entry_id}, acknowledged at {promised_at}, is {read.status!r} at {at}"
                )
        for ledger_id, promised_at in self.fences.items():
            if promised_at <= at and not self.forgotten(ledger_id, at):
                status = await begin_add(bookie, ledger_id, 1 << 40)
                if status is not BookieStatus.FENCED:
                    raise Lost(f"the fence of {ledger_id}, acknowledged at {promised_at}, is gone at {at}")
        for ledger_id, lac, promised_at in self.lacs:
            if promised_at <= at and not self.forgotten(ledger_id, at):
                found = await bookie.read_lac(ledger_id)
                if found.status is not OK or found.lac < lac:
                    raise Lost(
                        f"LAC {lac} of {ledger_id}, acknowledged at {promised_at}, is {found.lac} at {at}"
                    )


class Schedule:
    """A random life of one bookie, its restarts included."""

    def __init__(self, seed: int, directory: Path, disk: Disk, recorder: RecordingDisk, steps: int) -> None:
        self.random = random.Random(seed)
        self.promises = Promises()
        self._directory = directory
        self._disk = disk
        self._recorder = recorder
        self._steps = steps
        self._next = dict.fromkeys(LEDGERS, 0)
        self._gone: set[int] = set()

    async def run(self) -> None:
        bookie = await self._start()
        for _ in range(self._steps):
            step = self.random.choices(
                (self._adds, self._fence, self._lac, self._checkpoint, self._delete, self._restart),
                (12, 2, 2, 3, 0.7, 1.5),
            )[0]
            bookie = await step(bookie)
        await crash(bookie)

    async def _start(self) -> Bookie:
        bookie = make_bookie(
            self._directory, disk=self._disk, journal_segment_bytes=128 * KIB, entry_log_bytes=64 * KIB
        )
        await bookie.start()
        return bookie

    async def _adds(self, bookie: Bookie) -> Bookie:
        adds = []
        for _ in range(self.random.randint(1, 8)):
            ledger_id = self.random.choice(LEDGERS)
            if ledger_id in self._gone:
                continue
            if self._next[ledger_id] and self.random.random() < 0.1:
                entry_id = self.random.randrange(self._next[ledger_id])  # Once more, as a recovery does.
                if (ledger_id, entry_id) not in self.promises.entries:
                    continue
            else:
                entry_id = self._next[ledger_id]
                self._next[ledger_id] += 1
            payload = random.Random(f"{ledger_id}:{entry_id}").randbytes(
                (ledger_id * 7919 + entry_id * 104729) % 6000
            )
            adds.append(self._add(bookie, ledger_id, entry_id, payload))
        await asyncio.gather(*adds)
        return bookie

    async def _add(self, bookie: Bookie, ledger_id: int, entry_id: int, payload: bytes) -> None:
        recovery = ledger_id in self.promises.fences
        flags = AddFlags.RECOVERY if recovery else AddFlags.NONE
        acknowledged: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def done(status: BookieStatus) -> None:
            assert status in (OK, BookieStatus.FENCED)
            acknowledged.set_result(self._recorder.mark() if status is OK else -1)

        parts = entry(ledger_id, entry_id, payload)
        bookie.add_entry(ledger_id, entry_id, parts, flags, KEY, done)
        at = await acknowledged
        if at >= 0:
            self.promises.entries.setdefault((ledger_id, entry_id), (at, b"".join(parts)))
            self.promises.moments.add(at)

    async def _fence(self, bookie: Bookie) -> Bookie:
        ledger_id = self.random.choice(LEDGERS)
        if ledger_id not in self._gone:
            ask = self.random.choice((bookie.read_lac, lambda *a, **k: bookie.read_entry(a[0], 1 << 30, **k)))
            await ask(ledger_id, fence=True, master_key=KEY)
            self.promises.fences.setdefault(ledger_id, self._now())
        return bookie

    async def _lac(self, bookie: Bookie) -> Bookie:
        ledger_id = self.random.choice(LEDGERS)
        if ledger_id not in self._gone:
            lac = self._next[ledger_id]
            if await bookie.write_lac(ledger_id, lac, KEY) is OK:
                self.promises.lacs.append((ledger_id, lac, self._now()))
        return bookie

    async def _checkpoint(self, bookie: Bookie) -> Bookie:
        await bookie.checkpoint()
        return bookie

    async def _delete(self, bookie: Bookie) -> Bookie:
        ledger_id = self.random.choice(LEDGERS)
        if len(self._gone) < 2 and ledger_id not in self._gone:
            self._gone.add(ledger_id)
            self.promises.deleted[ledger_id] = self._recorder.mark()
            live = set(LEDGERS) - self._gone

            async def listing() -> set[int]:
                return live

            await GarbageCollector(bookie, listing).collect()
        return bookie

    async def _restart(self, bookie: Bookie) -> Bookie:
        await (bookie.stop() if self.random.random() < 0.4 else crash(bookie))
        return await self._start()

    def _now(self) -> int:
        at = self._recorder.mark()
        self.promises.moments.add(at)
        return at


async def expect_survival(
    promises: Promises, recorder: RecordingDisk, at: int, image: Path, coin: random.Random | None
) -> None:
    """Cut the power after operation `at`, start on what is left, and ask."""
    recorder.worst_image(at, image, coin=coin)
    bookie = make_bookie(image)
    try:
        await bookie.start()
    except BookieError as error:
        raise Lost(f"no start after a power cut at {at}: {error}") from error
    try:
        await promises.expect(bookie, at)
    finally:
        await crash(bookie)
        shutil.rmtree(image)


async def run_and_cut(
    tmp_path: Path,
    seed: int,
    wrap: Callable[[Disk], Disk] = lambda disk: disk,
    *,
    steps: int = 40,
    images: int = 60,
) -> None:
    """One schedule, and power cuts at acknowledgements and in between. Raises Lost."""
    directory = tmp_path / "bookie"
    directory.mkdir()
    recorder = RecordingDisk(directory)
    schedule = Schedule(seed, directory, wrap(recorder), recorder, steps)
    await schedule.run()
    promises = schedule.promises
    assert len(promises.entries) > steps, "the schedule must have something to lose"
    chooser = random.Random(seed)
    acknowledged = sorted(promises.moments)
    between = [chooser.randrange(acknowledged[0], acknowledged[-1]) for _ in range(images // 2)]
    moments = sorted(
        {*chooser.sample(acknowledged, min(images, len(acknowledged))), *between, acknowledged[-1]}
    )
    for number, at in enumerate(moments):
        coin = random.Random(at) if number % 3 == 2 else None
        await expect_survival(promises, recorder, at, tmp_path / f"image-{at}", coin)


@pytest.mark.parametrize("seed", SEEDS)
async def test_everything_acknowledged_survives(tmp_path: Path, seed: int) -> None:
    await run_and_cut(tmp_path, seed)


class AcknowledgesBeforeSync(WrappedDisk):
    """As if the journal answered when it has written: only a segment's first sync, that of its header, is real."""

    def __init__(self, inner: Disk | None = None) -> None:
        super().__init__(inner)
        self._synced: set[Path] = set()

    def create(self, path: Path) -> DiskFile:
        self._synced.discard(path)
        return super().create(path)

    def before_sync(self, path: Path) -> bool:
        again = path in self._synced
        self._synced.add(path)
        return path.parent.name != "journal" or not again


class SkipsStorageSyncs(WrappedDisk):
    """As if entry logs were not synced before the mark moves."""

    def before_sync(self, path: Path) -> bool:
        return path.parent.name != "entries"


class SkipsDirectorySyncs(WrappedDisk):
    """As if a rename were durable by itself."""

    def before_sync_directory(self, path: Path) -> bool:
        return False


class SkipsJournalDirectorySyncs(WrappedDisk):
    """As if a new segment's name were durable by itself."""

    def before_sync_directory(self, path: Path) -> bool:
        return path.name != "journal"


@pytest.mark.parametrize(
    "faulty", [AcknowledgesBeforeSync, SkipsStorageSyncs, SkipsDirectorySyncs, SkipsJournalDirectorySyncs]
)
async def test_a_disk_that_lies_is_found_out(tmp_path: Path, faulty: type[WrappedDisk]) -> None:
    with pytest.raises(Lost):
        await run_and_cut(tmp_path, 0, faulty)
