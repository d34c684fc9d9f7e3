"""A bookie with several directories is made, filled, and given more of them; the power is cut, or the process killed, after
some operation on any of its disks. Each time it starts again with the directories it has been given by then, and keeps
what it had acknowledged.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.bookie.several import AnyBookie, make_bookie
from magnetar.environment import crash as crash_points
from magnetar.environment.clock import SystemClock
from magnetar.environment.disk import Disk
from magnetar.environment.recording import RecordingDisk
from magnetar.protocol.bookie import BookieStatus
from tests.simulation.bookie.test_every_moment import COINS, WithoutSyncs
from tests.unit.bookie.workbench import KEY, KIB, add, crash, failed, small_settings, whole

OK = BookieStatus.OK
PAYLOAD = b"x" * 3000


def bookie_of(root: Path, disk: Disk, ledgers: int, journals: int) -> AnyBookie:
    settings = replace(
        small_settings(root / "ledgers0", journal_segment_bytes=16 * KIB, journal_first_bytes=8 * KIB),
        ledger_directories=tuple(root / f"ledgers{number}" for number in range(ledgers)),
        journal_directories=tuple(root / f"journal{number}" for number in range(journals)),
    )
    return make_bookie(settings, disk=disk, clock=SystemClock(), bookie_id="b1", on_disk_failure=failed)


@pytest.fixture
def unobserved() -> Iterator[None]:
    yield
    crash_points.observe(None)


@pytest.mark.parametrize("end", COINS)
async def test_it_may_end_after_any_operation(tmp_path: Path, end: str, unobserved: None) -> None:
    root = tmp_path / "disks"
    root.mkdir()
    recorder = RecordingDisk(root)
    acknowledged: dict[tuple[int, int], int] = {}
    fenced_at = 1 << 60
    passed: set[str] = set()
    begun: list[tuple[int, int]] = []
    """From which operation on there are how many ledger directories."""
    crash_points.observe(passed.add)
    for ledgers in (1, 2, 3):
        begun.append((recorder.mark(), ledgers))
        bookie = bookie_of(root, recorder, ledgers, 2 if ledgers > 1 else 1)
        await bookie.start()
        for ledger_id in range(ledgers + 3):
            assert await add(bookie, ledger_id, ledgers, PAYLOAD) is OK
            acknowledged[ledger_id, ledgers] = recorder.mark()
        if ledgers == 2:
            assert (await bookie.read_lac(50, fence=True, master_key=KEY)).status is OK
            fenced_at = recorder.mark()
            await bookie.checkpoint()
        for share in bookie.shares:
            await crash(share)
    crash_points.observe(None)
    assert {
        "bookie.shares.before_write",
        "bookie.shares.written",
        "bookie.directory.cookie_written",
    } <= passed

    last = recorder.mark()
    for at in range(0, last + 1, 3 if end == "power cut" else 8):
        image = tmp_path / "image"
        recorder.worst_image(at, image, coin=COINS[end](at))
        ledgers = max(count for since, count in begun if since <= at)
        bookie = bookie_of(image, WithoutSyncs(), ledgers, 2 if ledgers > 1 else 1)
        await bookie.start()
        for (ledger_id, entry_id), told_at in acknowledged.items():
            if told_at <= at:
                read = await bookie.read_entry(ledger_id, entry_id)
                assert read.entry == whole(ledger_id, entry_id, PAYLOAD), (at, ledger_id, entry_id)
        if fenced_at <= at:
            assert await add(bookie, 50, 0) is BookieStatus.FENCED, at
        assert await add(bookie, 99, 0) is OK, at
        homes = [share for share in bookie.shares for _ in share.ledgers()]
        assert len(homes) == len(bookie.ledgers()), "no ledger is in two places"
        for share in bookie.shares:
            await crash(share)
        shutil.rmtree(image)
