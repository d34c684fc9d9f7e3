"""Every data directory that was ever written can be opened."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from magnetar.protocol.bookie import BookieStatus
from tests.unit.bookie.workbench import add, running, whole

FIXTURES = sorted((Path(__file__).parent / "fixtures").glob("*.tar.gz"))


@pytest.mark.parametrize("archive", FIXTURES, ids=[path.stem for path in FIXTURES])
@pytest.mark.parametrize("index", ["kept", "lost"])
async def test_earlier_formats_open(tmp_path: Path, archive: Path, index: str) -> None:
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    if index == "lost":
        (tmp_path / "index" / "CURRENT").unlink()
    async with running(tmp_path) as bookie:
        assert bookie.storage.doubt is None
        for entry_id in range(60):
            assert (await bookie.read_entry(1, entry_id)).entry == whole(1, entry_id, b"kept for ever " * 20)
        assert (await bookie.read_entry(1, 60)).status is BookieStatus.NO_SUCH_ENTRY
        assert await add(bookie, 2, 0) is BookieStatus.FENCED
        assert (await bookie.read_lac(3)).lac == 40


def test_there_are_fixtures() -> None:
    assert FIXTURES
