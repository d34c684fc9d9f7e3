"""Frames between ledger client and bookie: what goes in comes out, however it is cut; noise never does harm."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.bookie.entry_ranges import ranges_of
from magnetar.protocol import bookie_frames as frames
from magnetar.protocol.bookie import AddFlags, BookieInfo, BookieStatus, EntryList, EntryRead, LacRead
from magnetar.protocol.buffers import Buffer
from magnetar.protocol.errors import FrameError

request_ids = st.integers(0, 2**64 - 1)
signed = st.integers(-(2**63), 2**63 - 1)
small = st.integers(0, 2**32 - 1)
keys = st.binary(max_size=255)
entries = st.binary(max_size=300)
statuses = st.sampled_from(BookieStatus)
Frame = tuple[bytes, Any]


def joined(buffers: bytes | list[Any]) -> bytes:
    return buffers if isinstance(buffers, bytes) else b"".join(buffers)


@st.composite
def requests(draw: st.DrawFn) -> Frame:
    number = draw(request_ids)
    key = draw(keys)
    match draw(st.integers(1, 9)):
        case 1:
            version = draw(st.integers(0, 255))
            return frames.encode_hello(version), frames.Hello(version)
        case 2:
            ledger_id, entry_id, entry = draw(signed), draw(signed), draw(entries)
            flags = AddFlags(draw(st.integers(0, 7)))
            cut = draw(st.integers(0, len(entry)))
            parts: list[Buffer] = [entry[:cut], memoryview(entry)[cut:]]
            data = joined(frames.encode_add(number, ledger_id, entry_id, parts, flags, key))
            return data, frames.AddRequest(number, ledger_id, entry_id, flags, key, memoryview(entry))
        case 3:
            ledger_id, entry_id, fence = draw(signed), draw(signed), draw(st.booleans())
            data = frames.encode_read(number, ledger_id, entry_id, fence=fence, master_key=key)
            return data, frames.ReadRequest(number, ledger_id, entry_id, fence, key)
        case 4:
            ledger_id, first, count, size = draw(signed), draw(signed), draw(small), draw(small)
            lane = draw(st.booleans())
            data = frames.encode_read_run(number, ledger_id, first, count, size, background=lane)
            return data, frames.ReadRunRequest(number, ledger_id, first, count, size, lane)
        case 5:
            ledger_id, fence = draw(signed), draw(st.booleans())
            data = frames.encode_read_lac(number, ledger_id, fence=fence, master_key=key)
            return data, frames.ReadLacRequest(number, ledger_id, fence, key)
        case 6:
            ledger_id, lac = draw(signed), draw(signed)
            return frames.encode_write_lac(number, ledger_id, lac, key), frames.WriteLacRequest(
                number, ledger_id, lac, key
            )
        case 7:
            ledger_id = draw(signed)
            return frames.encode_list(number, ledger_id), frames.ListRequest(number, ledger_id)
        case 8:
            ledger_id, above, wait_ms = draw(signed), draw(signed), draw(small)
            data = frames.encode_wait_lac(number, ledger_id, above, wait_ms / 1000)
            return data, frames.WaitLacRequest(number, ledger_id, above, wait_ms / 1000)
    return frames.encode_info(number), frames.InfoRequest(number)


@st.composite
def answers(draw: st.DrawFn) -> Frame:
    number, status, lac = draw(request_ids), draw(statuses), draw(signed)
    match draw(st.integers(1, 9)):
        case 1:
            version, bookie_id = draw(st.integers(0, 255)), draw(st.text(max_size=30))
            return frames.encode_welcome(bookie_id, version), frames.Welcome(version, bookie_id)
        case 2:
            numbers = draw(st.lists(request_ids, max_size=30))
            return frames.encode_added(status, numbers), frames.Added(status, tuple(numbers))
        case 8:
            held = draw(st.lists(st.integers(0, 2**62), unique=True, max_size=20).map(sorted))
            entry_list = EntryList(status, tuple(ranges_of(held)))
            return frames.encode_list_answer(number, entry_list), frames.ListAnswer(number, entry_list)
        case 9:
            waited = LacRead(status, lac)
            data = joined(frames.encode_lac_answer(number, waited, frames.WAIT_LAC))
            return data, frames.LacAnswer(number, waited)
        case 3:
            read = EntryRead(status, draw(entries), lac)
            return joined(frames.encode_entry_answer(number, read)), frames.EntryAnswer(number, read)
        case 4:
            run = draw(st.lists(entries, max_size=8))
            return joined(frames.encode_run_answer(number, status, run)), frames.RunAnswer(
                number, status, run
            )
        case 5:
            lac_read = LacRead(status, lac, draw(signed), draw(entries))
            return joined(frames.encode_lac_answer(number, lac_read)), frames.LacAnswer(number, lac_read)
        case 6:
            return frames.encode_lac_written(number, status), frames.LacWritten(number, status)
    info = BookieInfo(draw(request_ids), draw(request_ids), draw(st.booleans()))
    return frames.encode_info_answer(number, info), frames.InfoAnswer(number, info)


def feed_in_pieces(decoder: Any, data: bytes, cuts: list[int]) -> list[Any]:
    found = []
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, end in itertools.pairwise(edges):
        found += decoder.feed(data[start:end])
    return found


@settings(deadline=None)
@given(st.lists(requests(), max_size=8), st.lists(st.integers(0), max_size=20))
def test_requests_survive_any_cut(sent: list[Frame], cuts: list[int]) -> None:
    decoder = frames.RequestDecoder()
    data = b"".join(encoded for encoded, _ in sent)
    assert feed_in_pieces(decoder, data, cuts) == [request for _, request in sent]
    assert decoder.pending_bytes == 0


@settings(deadline=None)
@given(st.lists(answers(), max_size=8), st.lists(st.integers(0), max_size=20))
def test_answers_survive_any_cut(sent: list[Frame], cuts: list[int]) -> None:
    decoder = frames.AnswerDecoder()
    data = b"".join(encoded for encoded, _ in sent)
    assert feed_in_pieces(decoder, data, cuts) == [answer for _, answer in sent]


@settings(deadline=None)
@given(requests(), st.integers(0))
def test_half_a_frame_is_no_message(sent: Frame, cut: int) -> None:
    data, _ = sent
    decoder = frames.RequestDecoder()
    assert decoder.feed(data[: cut % len(data)]) == []
    assert decoder.pending_bytes == cut % len(data)


@settings(deadline=None)
@given(st.binary(max_size=400))
def test_noise_raises_nothing_but_frame_errors(noise: bytes) -> None:
    for make in (frames.RequestDecoder, frames.AnswerDecoder):
        expect_frame_errors_only(make, noise)


@settings(deadline=None)
@given(st.one_of(requests(), answers()), st.data())
def test_damaged_frames_raise_nothing_but_frame_errors(sent: Frame, data: st.DataObject) -> None:
    damaged = bytearray(sent[0])
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    for make in (frames.RequestDecoder, frames.AnswerDecoder):
        expect_frame_errors_only(make, bytes(damaged))


@settings(deadline=None)
@given(st.integers(1, 7), st.booleans(), st.binary(max_size=60))
def test_any_fields_behind_a_good_head(opcode: int, answer: bool, fields: bytes) -> None:
    data = frames._HEAD.pack(9 + len(fields), opcode | (0x80 if answer else 0), 1) + fields
    expect_frame_errors_only(frames.AnswerDecoder if answer else frames.RequestDecoder, data)


@settings(deadline=None)
@given(st.integers(frames.MAX_REQUEST_BYTES + 1, 2**32 - 1))
def test_a_length_too_large_is_refused_before_its_bytes_come(size: int) -> None:
    decoder = frames.RequestDecoder()
    with pytest.raises(FrameError, match=str(size)):
        decoder.feed(size.to_bytes(4, "big"))


def expect_frame_errors_only(make: Callable[[], Any], data: bytes) -> None:
    decoder = make()
    with contextlib.suppress(FrameError):
        for position in range(0, len(data), 7):
            decoder.feed(data[position : position + 7])
    assert decoder.pending_bytes <= frames.MAX_RESPONSE_BYTES


@settings(deadline=None)
@given(st.lists(st.integers(0, 60), max_size=40))
def test_ranges_hold_what_was_put_in_and_nothing_else(ids: list[int]) -> None:
    ranges = ranges_of(sorted(ids))
    assert {entry_id for first, last in ranges for entry_id in range(first, last + 1)} == set(ids)
    assert all(before[1] + 1 < after[0] for before, after in itertools.pairwise(ranges))
    held = EntryList(BookieStatus.OK, tuple(ranges))
    assert [entry_id for entry_id in range(-1, 62) if entry_id in held] == sorted(set(ids))
