"""After a failed sync nothing is acknowledged and nothing is tried again: the process ends."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from magnetar.environment.disk import EXIT_DISK_FAILED
from magnetar.protocol.bookie import BookieStatus
from tests.unit.bookie.workbench import running

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("folder", ["journal", "entries"])
async def test_a_failed_sync_ends_the_process(tmp_path: Path, folder: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.integration.bookie.failing_sync_process",
        str(tmp_path),
        folder,
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    try:
        async with asyncio.timeout(30):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == EXIT_DISK_FAILED
    assert output == b"acknowledged 0 OK\n"
    async with running(tmp_path) as bookie:
        assert (await bookie.read_entry(1, 0)).status is BookieStatus.OK
