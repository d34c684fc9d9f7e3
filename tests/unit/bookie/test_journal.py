"""The journal's bytes, and what a restart makes of them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.bookie.errors import JournalCorrupt, NewerFormat
from magnetar.bookie.journal import Journal
from magnetar.bookie.journal_replay import JournalReplay
from magnetar.bookie.mark import Mark
from magnetar.bookie.record import (
    BLOCK,
    FIRST_BLOCK,
    HEAD_BYTES,
    Kind,
    Pending,
    Record,
    encode_group,
    group_bytes,
    read_record,
)
from magnetar.bookie.segments import Segments
from magnetar.environment.clock import SystemClock
from magnetar.environment.disk import SystemDisk
from magnetar.protocol.bookie import BookieStatus
from tests.unit.bookie.workbench import KIB, entry, failed

START = Mark(1, FIRST_BLOCK, 1)


def pending(entry_id: int, size: int = 100) -> Pending:
    body = tuple(entry(1, entry_id, bytes([entry_id % 256]) * size))
    return (Kind.ENTRY, sum(map(len, body)), body, None)


def make_segments(directory: Path, segment_bytes: int = 64 * KIB) -> Segments:
    return Segments(
        SystemDisk(), directory, segment_bytes=segment_bytes, first_bytes=16 * KIB, clock=SystemClock(),
        salts=random.Random(7),
    )  # fmt: skip


class JournalInParts:
    """A journal written group by group, as its thread would."""

    def __init__(self, directory: Path, segment: int = 1, first: int = 1) -> None:
        self.segments = make_segments(directory)
        self.opened = self.segments.create(segment, first)
        self.offset = FIRST_BLOCK
        self.sequence = first

    def group(self, count: int, size: int = 100) -> int:
        """Write a group; returns where it begins."""
        records = [pending(self.sequence + place, size) for place in range(count)]
        header = self.opened.header
        self.opened.file.write(self.offset, encode_group(header.segment, header.salt, self.sequence, records))
        began = self.offset
        self.offset += group_bytes(records)
        self.sequence += count
        return began

    def roll(self) -> None:
        self.opened = self.segments.create(self.opened.header.segment + 1, self.sequence)
        self.offset = FIRST_BLOCK

    def damage(self, offset: int, data: bytes) -> None:
        self.opened.file.write(offset, [data])

    def replay(self, mark: Mark = START) -> list[int]:
        return [record.sequence for record in JournalReplay(self.segments, mark)]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[JournalInParts]:
    written = JournalInParts(tmp_path)
    yield written
    written.opened.file.close()


def test_a_group_is_read_back_record_by_record() -> None:
    records: list[Pending] = [
        (Kind.REGISTRATION, 5, (b"hello",), None),
        pending(3, 5000),
        (Kind.FENCE, 0, (b"",), None),
        pending(4, 0),
    ]
    data = b"".join(encode_group(9, 77, 40, records))
    assert len(data) == group_bytes(records)
    assert len(data) % BLOCK == 0
    position = 0
    for place, (kind, size, body, _) in enumerate(records):
        found = read_record(data, position, offset=position, segment=9, salt=77)
        assert isinstance(found, Record)
        assert (found.kind, found.sequence, found.group_first) == (kind, 40 + place, 40)
        assert b"".join(found.body) == b"".join(body)
        assert found.ends_group == (place == len(records) - 1)
        assert found.end == position + HEAD_BYTES + size
        position = found.end


def test_large_groups_are_written_without_being_joined() -> None:
    payload = bytes(100 * KIB)
    body = tuple(entry(1, 0, payload))
    buffers = encode_group(1, 0, 1, [(Kind.ENTRY, sum(map(len, body)), body, None)])
    assert any(buffer is payload for buffer in buffers) or any(buffer is body[1] for buffer in buffers)


@pytest.mark.parametrize(("segment", "salt"), [(8, 77), (9, 78)])
def test_another_segments_bytes_are_no_records(segment: int, salt: int) -> None:
    data = b"".join(encode_group(9, 77, 1, [pending(1)]))
    assert read_record(data, 0, offset=0, segment=segment, salt=salt) is None


def test_every_flipped_bit_is_noticed() -> None:
    data = b"".join(encode_group(9, 77, 1, [pending(1, 40)]))
    end = HEAD_BYTES + 36 + 40
    for position in range(end):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            found = read_record(bytes(damaged), 0, offset=0, segment=9, salt=77)
            assert found is None or isinstance(found, int) or found.sequence != 1 or found.group_first != 1


def test_a_journal_is_replayed_from_its_mark_on(journal: JournalInParts) -> None:
    journal.group(3)
    second = journal.group(2)
    journal.roll()
    journal.group(4)
    assert journal.replay() == list(range(1, 10))
    assert journal.replay(Mark(1, second, 4)) == list(range(4, 10))
    assert journal.replay(Mark(2, FIRST_BLOCK, 6)) == list(range(6, 10))


def test_an_empty_journal_has_no_records(journal: JournalInParts) -> None:
    assert journal.replay() == []


@pytest.mark.parametrize("cut", [0, 3, HEAD_BYTES + 5, HEAD_BYTES + 36 + 100, 250, 400])
def test_a_torn_tail_is_cut_and_said(
    journal: JournalInParts, cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Whole records before the tear count, although nobody was told of them."""
    journal.group(2)
    last = journal.group(3)
    journal.damage(last + cut, bytes(BLOCK - cut))
    whole_records = cut // (HEAD_BYTES + 136)
    assert journal.replay() == list(range(1, 3 + whole_records))
    cuts = [record for record in caplog.records if record.message == "journal.tail_cut"]
    assert bool(cuts) == (cut not in (0, 3)), "zeros are just the end"
    for record in cuts:
        assert record.__dict__["fields"]["offset"] == last + whole_records * (HEAD_BYTES + 136)


def test_a_group_that_reached_the_disk_out_of_order_is_a_torn_tail(journal: JournalInParts) -> None:
    """The last group spans many blocks; an early one is lost and later ones are there. Nothing was acknowledged."""
    journal.group(2)
    last = journal.group(20, size=1000)
    journal.damage(last + BLOCK, bytes(BLOCK))
    assert journal.replay() == [1, 2, 3, 4, 5]


def test_damage_before_a_later_group_is_corruption(journal: JournalInParts) -> None:
    journal.group(2)
    damaged = journal.group(3)
    journal.group(1)
    journal.damage(damaged + 200, b"\xff")
    with pytest.raises(JournalCorrupt) as error:
        journal.replay()
    assert error.value.path == journal.opened.path
    assert error.value.offset == damaged + HEAD_BYTES + 136
    assert str(journal.opened.path) in str(error.value)
    assert str(error.value.offset) in str(error.value)


def test_a_lost_block_before_a_later_group_is_corruption(journal: JournalInParts) -> None:
    damaged = journal.group(3)
    journal.group(1)
    journal.damage(damaged, bytes(BLOCK))
    with pytest.raises(JournalCorrupt):
        journal.replay()


def test_damage_before_a_later_segment_is_corruption(journal: JournalInParts) -> None:
    first = journal.opened
    damaged = journal.group(3)
    journal.roll()
    first.file.write(damaged + 40, [b"\xff\xff"])
    with pytest.raises(JournalCorrupt) as error:
        journal.replay()
    assert (error.value.path, error.value.offset) == (first.path, damaged)


def test_a_tail_that_was_cut_stays_cut(journal: JournalInParts) -> None:
    """After a torn tail the next start goes on in a new segment: the tear is no corruption later."""
    journal.group(2)
    last = journal.group(3)
    journal.damage(last + 200, bytes(BLOCK - 200))
    assert journal.replay() == [1, 2, 3]
    journal.sequence = 4
    journal.roll()
    journal.group(2)
    assert journal.replay() == [1, 2, 3, 4, 5]


def test_a_payload_that_looks_like_a_journal_is_a_payload(journal: JournalInParts) -> None:
    """Someone sends us a copy of our own journal, aligned to blocks, and the group that holds it is torn."""
    header = journal.opened.header
    forged = b"".join(encode_group(header.segment, 0, 99, [pending(99)])) * 4
    body = tuple(entry(1, 1, bytes(BLOCK - HEAD_BYTES - 36) + forged))
    last = journal.offset
    journal.opened.file.write(
        last, encode_group(header.segment, header.salt, 1, [(Kind.ENTRY, 36 + len(body[1]), body, None)])
    )
    journal.damage(last + 100, b"\xff")
    assert journal.replay() == []


def test_a_missing_segment_is_corruption(journal: JournalInParts) -> None:
    for _ in range(3):
        journal.group(1)
        journal.roll()
    journal.segments.path(2).unlink()
    with pytest.raises(JournalCorrupt, match=r"0000000000000002\.journal.*missing"):
        journal.replay()
    with pytest.raises(JournalCorrupt, match="that lastMark names is missing"):
        journal.replay(Mark(9, FIRST_BLOCK, 4))


@pytest.mark.parametrize("where", [0, 5, 16, 24, 41])
def test_a_damaged_header_is_corruption(journal: JournalInParts, where: int) -> None:
    journal.damage(where, bytes([journal.opened.file.read(where, 1)[0] ^ 0xFE]))
    with pytest.raises(JournalCorrupt, match="offset 0"):
        journal.replay()


def test_a_newer_journal_is_refused(journal: JournalInParts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.bookie.segments.VERSION", 2)
    journal.roll()
    monkeypatch.setattr("magnetar.bookie.segments.VERSION", 1)
    with pytest.raises(NewerFormat, match="format version 2"):
        journal.replay()


def test_a_recycled_segment_shows_nothing_of_its_past(tmp_path: Path) -> None:
    segments = make_segments(tmp_path, segment_bytes=16 * KIB)
    first = JournalInParts(tmp_path)
    first.segments = segments
    for _ in range(3):
        first.group(5)
    inode = first.opened.path.stat().st_ino
    first.roll()
    segments.release(2)
    assert not segments.path(1).exists()
    first.roll()
    assert first.opened.path.stat().st_ino == inode, "the old file is used again"
    first.group(2)
    assert first.replay(Mark(2, FIRST_BLOCK, 16)) == [16, 17]
    first.opened.file.close()


async def test_segments_roll_and_nothing_is_lost_between_them(tmp_path: Path) -> None:
    segments = make_segments(tmp_path)
    journal = Journal(segments, on_failure=failed)
    loop = asyncio.get_running_loop()
    await asyncio.to_thread(journal.start, loop, 1, 1)
    told: list[int] = []
    for burst in range(40):
        done = loop.create_future()
        for place in range(10):
            number = burst * 10 + place
            kind, size, body, _ = pending(number, 1000)

            def acknowledged(
                status: BookieStatus, number: int = number, done: asyncio.Future[None] = done
            ) -> None:
                told.append(number)
                if number % 10 == 9:
                    done.set_result(None)

            journal.append(kind, size, body, acknowledged)
        await asyncio.wait_for(done, 10)
    await journal.stop()
    assert told == list(range(400))
    assert len(segments.ids()) > 4
    assert [record.sequence for record in JournalReplay(segments, START)] == list(range(1, 401))
    assert journal.durable.sequence == 401
    assert journal.pending_bytes == 0


async def test_stopping_acknowledges_what_was_queued(tmp_path: Path) -> None:
    journal = Journal(make_segments(tmp_path), on_failure=failed)
    await asyncio.to_thread(journal.start, asyncio.get_running_loop(), 1, 1)
    told: list[BookieStatus] = []
    for number in range(100):
        kind, size, body, _ = pending(number)
        journal.append(kind, size, body, told.append)
    await journal.stop()
    assert told == [BookieStatus.OK] * 100


async def test_a_callback_that_raises_harms_no_other(tmp_path: Path) -> None:
    journal = Journal(make_segments(tmp_path), on_failure=failed)
    await asyncio.to_thread(journal.start, asyncio.get_running_loop(), 1, 1)
    told: list[BookieStatus] = []

    def clumsy(status: BookieStatus) -> None:
        raise ValueError("a mistake")

    for done in (told.append, clumsy, told.append):
        kind, size, body, _ = pending(1)
        journal.append(kind, size, body, done)
    await journal.stop()
    assert told == [BookieStatus.OK] * 2
