"""The machine's own disks, in a temporary directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from magnetar.environment.directory_lock import DirectoryLock
from magnetar.environment.disk import SystemDisk
from magnetar.environment.errors import DirectoryInUse, DiskFailed

DISK = SystemDisk()


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = DISK.create(tmp_path / "f")
    assert file.write(3, [b"abc", bytearray(b"de"), memoryview(b"fgh")[1:], b""]) == 7
    assert file.read(0, 100) == b"\0\0\0abcdegh"
    assert file.read(4, 3) == b"bcd"
    assert file.read(100, 5) == b""
    assert file.size() == 10
    file.sync()
    file.close()
    file.close()
    assert DISK.read_file(tmp_path / "f") == b"\0\0\0abcdegh"


def test_more_buffers_than_the_kernel_takes_at_once(tmp_path: Path) -> None:
    buffers = [bytes([n % 251]) * 3 for n in range(5000)]
    file = DISK.create(tmp_path / "f")
    assert file.write(0, buffers) == 15_000
    assert file.read(0, 15_000) == b"".join(buffers)


def test_a_short_write_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, views, at: whole(fd, [views[0][:2]], at))
    file = DISK.create(tmp_path / "f")
    assert file.write(1, [b"abc", b"d", b"efghi"]) == 9
    assert file.read(0, 20) == b"\0abcdefghi"


def test_buffers_of_wider_items_are_written_as_bytes(tmp_path: Path) -> None:
    file = DISK.create(tmp_path / "f")
    assert file.write(0, [memoryview(b"\x01\x00\x02\x00").cast("H")]) == 4
    assert file.read(0, 10) == b"\x01\x00\x02\x00"


def test_allocated_bytes_are_zeros_on_disk(tmp_path: Path) -> None:
    file = DISK.create(tmp_path / "f")
    file.write(0, [b"x"])
    file.allocate(1, 3 * 1024 * 1024)
    assert file.size() == 3 * 1024 * 1024 + 1
    assert file.read(0, 3) == b"x\0\0"
    assert os.stat(tmp_path / "f").st_blocks * 512 >= 3 * 1024 * 1024


def test_a_file_is_created_once(tmp_path: Path) -> None:
    DISK.create(tmp_path / "f").close()
    with pytest.raises(FileExistsError):
        DISK.create(tmp_path / "f")
    with pytest.raises(FileNotFoundError):
        DISK.open(tmp_path / "g")


def test_a_failed_sync_is_no_ordinary_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    file = DISK.create(tmp_path / "f")
    monkeypatch.setattr(os, "fdatasync", fail)
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(DiskFailed, match=r"f failed: .*Input/output error"):
        file.sync()
    with pytest.raises(DiskFailed):
        DISK.sync_directory(tmp_path)


def test_a_directory_is_made_with_its_parents(tmp_path: Path) -> None:
    DISK.make_directory(tmp_path / "a" / "b")
    DISK.make_directory(tmp_path / "a" / "b")
    assert DISK.list(tmp_path / "a") == ["b"]


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    DISK.replace_file(tmp_path / "f", b"old")
    (tmp_path / ".f.new").write_bytes(b"left by a crash")
    DISK.replace_file(tmp_path / "f", b"new")
    assert DISK.read_file(tmp_path / "f") == b"new"
    assert DISK.list(tmp_path) == ["f"]


def test_one_owner_of_a_directory(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    with pytest.raises(DirectoryInUse, match=rf"in use by process {os.getpid()}"):
        DirectoryLock(tmp_path)
    lock.release()
    lock.release()
    DirectoryLock(tmp_path).release()
