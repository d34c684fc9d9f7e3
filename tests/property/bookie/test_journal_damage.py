"""Damage anywhere in a journal: nothing that a later group follows is ever lost without a word."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from magnetar.bookie.errors import JournalCorrupt
from magnetar.bookie.journal_replay import JournalReplay
from magnetar.bookie.mark import Mark
from magnetar.bookie.record import (
    FIRST_BLOCK,
    Kind,
    Pending,
    Record,
    encode_group,
    encode_registration,
    group_bytes,
)
from magnetar.bookie.segments import Segments
from magnetar.environment.clock import SystemClock
from magnetar.environment.disk import SystemDisk
from tests.unit.bookie.workbench import KIB, entry

groups = st.lists(st.lists(st.integers(0, 5000), min_size=1, max_size=4), min_size=1, max_size=6)


def write(
    directory: Path, sizes: list[list[int]], rolls: set[int]
) -> tuple[Segments, list[tuple[Path, int, int]]]:
    """A journal of these groups; returns the place of each: file, offset, bytes up to the end of its last record."""
    segments = Segments(
        SystemDisk(), directory, segment_bytes=64 * KIB, first_bytes=64 * KIB, clock=SystemClock(), salts=random.Random(3)
    )  # fmt: skip
    opened = segments.create(1, 1)
    offset, sequence = FIRST_BLOCK, 1
    places = []
    for number, group in enumerate(sizes):
        if number in rolls:
            opened.file.close()
            opened = segments.create(opened.header.segment + 1, sequence)
            offset = FIRST_BLOCK
        records: list[Pending] = []
        for place, size in enumerate(group):
            if size % 7 == 3:
                fence = encode_registration(size, b"key")
                records.append((Kind.FENCE, len(fence), (fence,), None))
                continue
            body = tuple(entry(1, sequence + place, bytes([place + 1]) * size))
            records.append((Kind.ENTRY, 36 + size, body, None))
        header = opened.header
        opened.file.write(offset, encode_group(header.segment, header.salt, sequence, records))
        places.append((opened.path, offset, sum(32 + record[1] for record in records)))
        offset += group_bytes(records)
        sequence += len(group)
    opened.file.close()
    return segments, places


def replay(segments: Segments) -> tuple[list[int], JournalCorrupt | None]:
    """The records found, and the damage that ended the replay: the same one by one and in runs."""
    found: list[int] = []
    bodies: list[tuple[bytes, ...]] = []
    damage = None
    try:
        for record in JournalReplay(segments, Mark(1, FIRST_BLOCK, 1)):
            found.append(record.sequence)
            bodies.append(record.body)
    except JournalCorrupt as error:
        damage = error
    in_runs = JournalReplay(segments, Mark(1, FIRST_BLOCK, 1))
    run_bodies: list[tuple[bytes, ...]] = []
    same_damage = None
    try:
        for run in in_runs.runs():
            run_bodies += [run.body] if isinstance(run, Record) else [entry[4] for entry in run.entries]
    except JournalCorrupt as error:
        same_damage = error
    assert run_bodies == bodies
    assert str(same_damage) == str(damage)
    assert in_runs.records == len(found)
    if damage is None:
        assert found == list(range(1, len(found) + 1))
        assert in_runs.next_sequence == len(found) + 1
    return found, damage


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=120)
@given(groups, st.sets(st.integers(1, 5)), st.data())
def test_only_the_last_group_may_be_cut(sizes: list[list[int]], rolls: set[int], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        segments, places = write(Path(name), sizes, rolls)
        which = data.draw(st.integers(0, len(places) - 1), label="damaged group")
        path, offset, length = places[which]
        start = data.draw(st.integers(0, length - 1), label="from")
        size = data.draw(st.integers(1, length - start), label="bytes")
        image = bytearray(path.read_bytes())
        original = bytes(image[offset + start : offset + start + size])
        replacement = data.draw(
            st.sampled_from([bytes(size), b"\xff" * size, random.Random(size).randbytes(size)]),
            label="damage",
        )
        image[offset + start : offset + start + size] = replacement
        path.write_bytes(image)

        total = sum(map(len, sizes))
        safe = total - len(sizes[-1])
        found, error = replay(segments)
        if error is not None:
            assert which < len(places) - 1, "the last group may always be torn"
            assert error.path == path
            assert offset <= error.offset <= offset + length
            assert replacement != original
        else:
            assert len(found) >= safe
            if replacement == original:
                assert len(found) == total


@settings(deadline=None, max_examples=60)
@given(groups, st.data())
def test_a_write_cut_anywhere_keeps_what_came_before(sizes: list[list[int]], data: st.DataObject) -> None:
    """The last group got only so far, and each of its blocks did or did not reach the disk."""
    with tempfile.TemporaryDirectory() as name:
        segments, places = write(Path(name), sizes, set())
        path, offset, length = places[-1]
        image = bytearray(path.read_bytes())
        for block in range(offset, offset + length, 4096):
            if data.draw(st.booleans(), label=f"block {block} lost"):
                image[block : block + 4096] = bytes(4096)
        path.write_bytes(image)
        found, error = replay(segments)
        assert error is None
        assert len(found) >= sum(map(len, sizes[:-1]))
