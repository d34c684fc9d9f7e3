"""Every named crash point of the bookie is passed, and the power is cut, or the process killed, at each.

Those of a bookie with several directories are in `test_several_directories.py`.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.bookie.garbage import GarbageCollector, LiveLedgers
from magnetar.bookie.integrity import Integrity
from magnetar.environment import crash as crash_points
from magnetar.protocol.bookie import BookieStatus
from tests.simulation.bookie.test_every_moment import COINS, PAYLOAD, KeepsAll, Life
from tests.unit.bookie.test_garbage import Unnamed
from tests.unit.bookie.test_limbo import KnownPeers
from tests.unit.bookie.workbench import KEY, add, crash, until, whole

ROOT = Path(__file__).parents[3] / "platform" / "magnetar" / "bookie"
NAMES = set(re.findall(r'crash_point\("([^"]+)"', "".join(path.read_text() for path in ROOT.glob("*.py"))))


class Passages:
    """When each point was passed, in disk operations of a life."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self.at: dict[str, list[int]] = {}

    def __call__(self, name: str) -> None:
        self.at.setdefault(name, []).append(self._life.recorder.mark())

    def chosen(self) -> dict[int, str]:
        moments: dict[int, str] = {}
        for name, passed in sorted(self.at.items()):
            for number in {0, len(passed) // 2, len(passed) - 1}:
                moments[passed[number]] = name
        return moments


@pytest.fixture
def unobserved() -> Iterator[None]:
    yield
    crash_points.observe(None)


async def whole_life(life: Life, peers: KnownPeers) -> None:
    """All that a bookie does to its disk."""
    bookie = life.bookie()
    await bookie.start()
    await life.add(bookie, 1, range(8))
    await bookie.read_lac(7, fence=True, master_key=KEY)
    for turn in range(4):
        for ledger_id in (1, 2, 3):
            await life.add(bookie, ledger_id, range(8 + 2 * turn, 10 + 2 * turn))
        await bookie.checkpoint()
    for lac in range(12):  # The table is written anew.
        await bookie.write_lac(1, lac, KEY)
        await bookie.checkpoint()
    await life.add(bookie, 1, range(16, 17))
    await bookie.checkpoint()
    await crash(bookie)  # The newest log has no map yet: garbage collection gives it one.

    bookie = life.bookie()
    await bookie.start()
    await life.add(bookie, 1, range(17, 22))
    await bookie.checkpoint()
    await life.forget(bookie, 2)
    damaged = bookie.storage.logs.path(bookie.storage.complete_logs(bookie.storage.log_boundary())[0])
    life.forgotten_at[3] = life.recorder.mark()
    unnamed = Unnamed(3)
    collector = GarbageCollector(bookie, _listing(bookie.ledgers()), surplus=unnamed)
    assert (await collector.collect()).surplus_ledgers == 1
    await bookie.in_storage_thread(bookie.storage.rescue, int(damaged.stem, 16), [1])
    await bookie.in_storage_thread(bookie.storage.rebuild_index, bookie._table)
    await life.add(bookie, 1, range(22, 26))

    await bookie.enter_limbo("for the test")
    integrity = Integrity(bookie, peers, retry_s=0.01)
    await integrity.prepare()
    integrity.start()
    await until(lambda: not bookie.limbo)
    await integrity.stop()
    bookie.storage._index.doubt("for the test")
    await bookie.leave_limbo(())
    await bookie.stop()


async def test_each_named_point_is_passed_and_survived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unobserved: None
) -> None:
    monkeypatch.setattr("magnetar.bookie.ledger_table._REWRITE_MIN_BYTES", 256)
    life = Life(tmp_path / "bookie")
    peers = KnownPeers({5: [(0, 2)]}, {(5, entry_id): whole(5, entry_id) for entry_id in range(3)})
    passages = Passages(life)
    crash_points.observe(passages)
    await whole_life(life, peers)
    crash_points.observe(None)
    assert set(passages.at) == {name for name in NAMES if not name.startswith("bookie.shares.")}
    in_limbo = passages.at["bookie.limbo.after_write"]

    for at, name in sorted(passages.chosen().items()):
        for end in ("power cut", "kill")[: 1 + (at % 3 == 0)]:
            image = tmp_path / "image"
            life.recorder.worst_image(at, image, coin=COINS[end](at) if end == "power cut" else KeepsAll())
            bookie = life.bookie(image)
            await bookie.start()
            for (ledger_id, entry_id), told_at in life.acknowledged.items():
                if told_at <= at < life.forgotten_at.get(ledger_id, 1 << 60):
                    read = await bookie.read_entry(ledger_id, entry_id)
                    assert read.entry == whole(ledger_id, entry_id, PAYLOAD), (name, end, ledger_id, entry_id)
            if in_limbo[0] < at < in_limbo[1]:
                assert bookie.limbo, (name, end)
                assert (await bookie.read_entry(5, 77)).status is BookieStatus.UNKNOWN, (name, end)
            if not bookie.limbo:
                assert await add(bookie, 99, 0) is BookieStatus.OK, (name, end)
            collected = GarbageCollector(bookie, _listing({1, 5, 7, 99}))
            await collected.collect()
            assert not collected.troubled_logs, (name, end)
            await crash(bookie)
            shutil.rmtree(image)


def _listing(ledgers: set[int]) -> LiveLedgers:
    async def listing() -> set[int]:
        return ledgers

    return listing
