"""However a test ends, its cluster leaves no process, no mount and no open port behind."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from magnetar.testing.cluster import Cluster, ClusterPlan
from magnetar.testing.small_disk import SmallDisk

pytestmark = [pytest.mark.integration, pytest.mark.zookeeper, pytest.mark.timeout(300)]

PLAN = ClusterPlan(
    zookeepers=1, bookies=1, brokers=1, autorecoveries=0, ensemble=(1, 1, 1), small_disks={0: 256 << 20}
)


class Broken(Exception):
    """What a test may raise."""


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_test_that_fails_leaves_nothing(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "cluster", PLAN)
    pids: list[int | None] = []

    def failing_test() -> None:
        with cluster:
            pids.extend(node.pid for node in cluster.nodes)
            cluster.bookies[0].pause()  # The hardest to end: it hears nothing but SIGKILL.
            raise Broken

    with pytest.raises(Broken):
        failing_test()
    assert len(pids) == 3
    assert not any(pid is None or runs(pid) for pid in pids)
    host, port = cluster.bookies[0].address.split(":")
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((host, int(port)), timeout=5)
    assert str(tmp_path) not in Path("/proc/mounts").read_text()


def test_a_start_that_fails_leaves_nothing(tmp_path: Path) -> None:
    cluster = Cluster(
        tmp_path / "cluster", ClusterPlan(zookeepers=1, bookies=1, brokers=1, ensemble=(1, 2, 1))
    )
    with pytest.raises(Exception, match="do not fit"):
        cluster.__enter__()
    assert cluster.keepers
    assert not any(node.alive() for node in cluster.nodes)


def test_a_small_disk_is_filled_and_relieved(tmp_path: Path) -> None:
    if not SmallDisk.allowed(tmp_path):
        assert os.geteuid() != 0, "root may mount"
        return
    disk = SmallDisk(tmp_path / "disk", 4 << 20)
    disk.mount()
    try:
        disk.fill()
        assert disk.free_bytes() == 0
        with pytest.raises(OSError, match="No space"):
            (disk.directory / "file").write_bytes(b"x" * 8192)
        disk.relieve()
        (disk.directory / "file").write_bytes(b"x" * 8192)
    finally:
        disk.unmount()
