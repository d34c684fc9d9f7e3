"""What a power cut leaves at worst, told by a disk that knows what was made durable."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from magnetar.environment.disk import SystemFile
from magnetar.environment.recording import RecordingDisk


class Room:
    """A recorded directory, and images of it."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "data"
        self.path.mkdir()
        self._images = directory / "images"
        self._count = 0
        self.disk = RecordingDisk(self.path)

    def after_power_cut(self, at: int | None = None, coin: random.Random | None = None) -> dict[str, bytes]:
        """Name → content of what is left."""
        self._count += 1
        into = self._images / str(self._count)
        into.mkdir(parents=True)
        self.disk.worst_image(self.disk.mark() if at is None else at, into, coin=coin)
        return {
            str(path.relative_to(into)): path.read_bytes()
            for path in sorted(into.rglob("*"))
            if path.is_file()
        }


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path)


def test_what_was_there_before_is_durable(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "old").write_bytes(b"kept")
    disk = RecordingDisk(tmp_path / "data")
    (tmp_path / "image").mkdir()
    disk.worst_image(0, tmp_path / "image")
    assert (tmp_path / "image" / "old").read_bytes() == b"kept"


def test_a_new_file_needs_its_directory_synced(room: Room) -> None:
    file = room.disk.create(room.path / "f")
    file.write(0, [b"abc"])
    file.sync()
    assert room.after_power_cut() == {}
    room.disk.sync_directory(room.path)
    assert room.after_power_cut() == {"f": b"abc"}


def test_unsynced_writes_sizes_and_truncations_are_lost(room: Room) -> None:
    file = room.disk.create(room.path / "f")
    room.disk.sync_directory(room.path)
    assert room.after_power_cut() == {"f": b""}
    file.write(0, [b"abc", b"def"])
    file.sync()
    file.write(2, [b"XYZ"])
    file.write(6, [b"more"])
    assert room.after_power_cut() == {"f": b"abcdef"}
    file.sync()
    assert room.after_power_cut() == {"f": b"abXYZfmore"}
    file.truncate(1)
    assert room.after_power_cut() == {"f": b"abXYZfmore"}
    file.sync()
    file.allocate(1, 2)
    assert room.after_power_cut() == {"f": b"a"}


def test_an_unsynced_removal_is_undone(room: Room) -> None:
    file = room.disk.create(room.path / "f")
    file.write(0, [b"abc"])
    file.sync()
    room.disk.sync_directory(room.path)
    room.disk.remove(room.path / "f")
    assert room.after_power_cut() == {"f": b"abc"}
    room.disk.sync_directory(room.path)
    assert room.after_power_cut() == {}


def test_an_unsynced_rename_is_undone(room: Room) -> None:
    for name in ("old", "new"):
        file = room.disk.create(room.path / name)
        file.write(0, [name.encode()])
        file.sync()
    room.disk.sync_directory(room.path)
    room.disk.rename(room.path / "new", room.path / "old")
    assert room.after_power_cut() == {"new": b"new", "old": b"old"}
    room.disk.sync_directory(room.path)
    assert room.after_power_cut() == {"old": b"new"}


def test_a_replaced_file_is_old_or_new_at_every_moment(room: Room) -> None:
    room.disk.replace_file(room.path / "f", b"old")
    began = room.disk.mark()
    room.disk.replace_file(room.path / "f", b"new")
    for at in range(began, room.disk.mark()):
        assert room.after_power_cut(at)["f"] == b"old"
        for seed in range(10):
            assert room.after_power_cut(at, random.Random(seed))["f"] in (b"old", b"new")
    assert room.after_power_cut()["f"] == b"new"


def test_a_rename_before_the_sync_of_its_content_is_caught(room: Room) -> None:
    """The classic mistake: new name, no content."""
    room.disk.replace_file(room.path / "f", b"old")
    file = room.disk.create(room.path / "f.new")
    file.write(0, [b"new"])
    room.disk.rename(room.path / "f.new", room.path / "f")
    room.disk.sync_directory(room.path)
    assert room.after_power_cut() == {"f": b""}


def test_torn_writes_are_whole_pages_of_the_old_or_the_new(room: Room) -> None:
    file = room.disk.create(room.path / "f")
    room.disk.sync_directory(room.path)
    file.write(0, [b"a" * 16384])
    file.sync()
    file.write(100, [b"b" * 16000])
    seen = set()
    for seed in range(40):
        content = room.after_power_cut(coin=random.Random(seed))["f"]
        seen.add(content)
        for start in (100, 4096, 8192, 12288):
            stop = min((start // 4096 + 1) * 4096, 16100)
            assert content[start:stop] in (b"a" * (stop - start), b"b" * (stop - start))
    assert len(seen) > 5


def test_images_can_be_asked_for_in_any_order(room: Room) -> None:
    file = room.disk.create(room.path / "f")
    room.disk.sync_directory(room.path)
    marks = []
    for number in range(5):
        file.write(number, [b"%d" % number])
        file.sync()
        marks.append(room.disk.mark())
    for number in (4, 0, 2, 2, 1, 3):
        assert room.after_power_cut(marks[number]) == {"f": b"01234"[: number + 1]}
    with pytest.raises(ValueError, match="only"):
        room.after_power_cut(room.disk.mark() + 1)


def test_directories_and_opened_files_are_recorded_too(room: Room) -> None:
    room.disk.make_directory(room.path / "a" / "b")
    room.disk.create(room.path / "a" / "b" / "f").close()
    room.disk.sync_directory(room.path / "a" / "b")
    file = room.disk.open(room.path / "a" / "b" / "f", writable=True)
    file.write(0, [b"x"])
    assert room.after_power_cut() == {"a/b/f": b""}
    file.sync()
    assert file.read(0, 9) == b"x"
    assert file.size() == 1
    file.close()
    assert room.after_power_cut() == {"a/b/f": b"x"}
    assert room.disk.list(room.path) == ["a"]
    assert room.disk.exists(room.path / "a")
    assert room.disk.read_file(room.path / "a" / "b" / "f") == b"x"
    assert room.disk.free_bytes(room.path) > 0


def test_a_sync_covers_only_what_had_ended_when_it_began(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that another thread makes while the sync runs is not safe."""
    file = room.disk.create(room.path / "f")
    room.disk.sync_directory(room.path)
    sync = SystemFile.sync

    def sync_while_another_writes(inner: SystemFile) -> None:
        file.write(0, [b"late"])
        sync(inner)

    monkeypatch.setattr(SystemFile, "sync", sync_while_another_writes)
    file.sync()
    assert room.after_power_cut() == {"f": b""}
