"""Whatever is done to a recorded disk, an image holds what was synced, and with a coin nothing never written."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.environment.recording import RecordingDisk

NAMES = ("a", "b", "c")
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(
            st.just("write"),
            st.sampled_from(NAMES),
            st.integers(0, 9000),
            st.binary(min_size=1, max_size=6000),
        ),
        st.tuples(st.just("truncate"), st.sampled_from(NAMES), st.integers(0, 5000)),
        st.tuples(st.just("sync"), st.sampled_from(NAMES)),
        st.tuples(st.just("rename"), st.sampled_from(NAMES), st.sampled_from(NAMES)),
        st.tuples(st.just("remove"), st.sampled_from(NAMES)),
        st.tuples(st.just("sync_directory")),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(OPERATIONS, st.integers(0, 2**32))
def test_after_syncing_everything_the_image_is_the_disk(operations: list[tuple], seed: int) -> None:  # type: ignore[type-arg]
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary) / "data"
        root.mkdir()
        disk = RecordingDisk(root)
        for operation in operations:
            apply(disk, root, operation)
        for name in disk.list(root):
            file = disk.open(root / name, writable=True)
            file.sync()
            file.close()
        disk.sync_directory(root)
        for number, coin in enumerate((None, random.Random(seed))):
            into = Path(temporary) / f"image-{number}"
            into.mkdir()
            disk.worst_image(disk.mark(), into, coin=coin)
            found = {path.name: path.read_bytes() for path in into.iterdir()}
            assert found == {name: (root / name).read_bytes() for name in disk.list(root)}


@settings(max_examples=60, deadline=None)
@given(OPERATIONS, st.integers(0, 30))
def test_an_image_without_a_coin_never_depends_on_later_operations(
    operations: list[tuple],  # type: ignore[type-arg]
    at: int,
) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary) / "data"
        root.mkdir()
        disk = RecordingDisk(root)
        early: dict[str, bytes] | None = None
        moment = 0
        for number, operation in enumerate(operations):
            if number == at:
                moment = disk.mark()
                early = image(disk, moment, Path(temporary) / "early")
            apply(disk, root, operation)
        if early is not None:
            assert image(disk, moment, Path(temporary) / "late") == early


def image(disk: RecordingDisk, at: int, into: Path) -> dict[str, bytes]:
    into.mkdir()
    disk.worst_image(at, into)
    return {path.name: path.read_bytes() for path in into.iterdir()}


def apply(disk: RecordingDisk, root: Path, operation: tuple) -> None:  # type: ignore[type-arg]
    match operation:
        case ("write", name, offset, data):
            exists = disk.exists(root / name)
            file = disk.open(root / name, writable=True) if exists else disk.create(root / name)
            file.write(offset, [data])
            file.close()
        case ("truncate", name, size) if disk.exists(root / name):
            file = disk.open(root / name, writable=True)
            file.truncate(size)
            file.close()
        case ("sync", name) if disk.exists(root / name):
            file = disk.open(root / name, writable=True)
            file.sync()
            file.close()
        case ("rename", source, target) if source != target and disk.exists(root / source):
            disk.rename(root / source, root / target)
        case ("remove", name) if disk.exists(root / name):
            disk.remove(root / name)
        case ("sync_directory",):
            disk.sync_directory(root)
