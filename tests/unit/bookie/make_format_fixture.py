"""Make a data directory of the present format, to be opened by all later versions.

    python -m tests.unit.bookie.make_format_fixture tests/unit/bookie/fixtures/format-1.tar.gz

Run once per format; the archives stay.
"""

from __future__ import annotations

import asyncio
import sys
import tarfile
import tempfile
from pathlib import Path

from magnetar.protocol.bookie import BookieStatus
from tests.unit.bookie.workbench import KEY, KIB, add_many, crash, make_bookie


async def fill(directory: Path) -> None:
    """Ledger 1 in entry logs and journal, 2 fenced, 3 with an explicit LAC; then a crash."""
    bookie = make_bookie(
        directory, journal_segment_bytes=64 * KIB, journal_first_bytes=16 * KIB, entry_log_bytes=8 * KIB
    )
    await bookie.start()
    for first in (0, 20, 40):
        await add_many(bookie, 1, range(first, first + 20), b"kept for ever " * 20)
        if first < 40:
            await bookie.checkpoint()
        assert (await bookie.read_lac(2, fence=True, master_key=KEY)).status is BookieStatus.OK
        assert await bookie.write_lac(3, first, KEY) is BookieStatus.OK
    await crash(bookie)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(fill(Path(directory)))
        with tarfile.open(sys.argv[1], "x:gz") as archive:
            archive.add(directory, arcname=".")


if __name__ == "__main__":
    main()
