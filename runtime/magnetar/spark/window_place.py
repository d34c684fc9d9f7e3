"""What a window job finds of itself in its work directory, when it starts: its checkpoint, and its producers' name.

A checkpoint counts micro-batches, and the broker drops what a producer has sent under the same count before. So a
checkpoint and the name of its producers belong together: a job that begins anew, because another worker had the
checkpoint on its disk, counts from 0 under a name of its own. Under the old one all its first results would be dropped.
"""

from __future__ import annotations

import json
from pathlib import Path
from uuid import uuid4

from magnetar.environment.disk import SystemDisk

FORMAT = 1


def checkpoint_of(work_dir: Path, epoch: int) -> Path:
    """Spark's directory for offsets, state and commits."""
    return work_dir / f"checkpoint-{epoch}"


def producer_prefix(work_dir: Path, name: str, epoch: int) -> str:
    """What the names of the job's producers begin with; on disk before the checkpoint is begun, and as long as that.

    Raises:
        ValueError: a newer Magnetar has written it down.
    """
    record = work_dir / f"producers-{epoch}.json"
    if record.exists():
        data = json.loads(record.read_bytes())
        if data.get("version") != FORMAT:
            raise ValueError(
                f"{record}: version {data.get('version')!r} of a producers' name; this Magnetar reads version {FORMAT}"
            )
        return str(data["prefix"])
    if checkpoint_of(work_dir, epoch).exists():
        return f"{name}-{epoch}"  # Begun by a Magnetar that wrote no name down.
    prefix = f"{name}-{epoch}-{uuid4().hex[:12]}"
    SystemDisk().replace_file(record, json.dumps({"version": FORMAT, "prefix": prefix}).encode())
    return prefix
