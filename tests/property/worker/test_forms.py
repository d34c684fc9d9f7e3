"""A multipart body means the same however its bytes are cut into chunks, and nonsense is refused, never more."""

from __future__ import annotations

import itertools
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from magnetar.worker.errors import BadRequest
from magnetar.worker.rest.forms import _FileBegins, _Reader

BOUNDARY = b"boundary"
contents = st.binary(max_size=200).filter(lambda data: BOUNDARY not in data)


def body_of(field: bytes, file: bytes) -> bytes:
    return (
        b'--boundary\r\nContent-Disposition: form-data; name="functionConfig"\r\n\r\n'
        + field
        + b'\r\n--boundary\r\nContent-Disposition: form-data; name="data"; filename="a.py"\r\n'
        + b"Content-Type: application/octet-stream\r\n\r\n"
        + file
        + b"\r\n--boundary--\r\n"
    )


def read(reader: _Reader, chunks: list[bytes]) -> tuple[list[str], bytes]:
    names, data = [], b""
    for chunk in chunks:
        for event in reader.feed(chunk):
            if isinstance(event, _FileBegins):
                names.append(event.filename)
            else:
                data += event
    reader.finish()
    return names, data


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(c % (len(data) + 1) for c in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@given(field=contents, file=contents, cuts=st.lists(st.integers(0, 1000), max_size=12))
def test_chunks_do_not_matter(field: bytes, file: bytes, cuts: list[int]) -> None:
    reader = _Reader(BOUNDARY, 1000, "data")
    assert read(reader, cut(body_of(field, file), cuts)) == (["a.py"], file)
    assert reader.fields == {"functionConfig": field}


@given(
    field=contents,
    file=contents,
    start=st.integers(0, 400),
    damage=st.binary(max_size=20),
    cuts=st.lists(st.integers(0, 1000), max_size=5),
)
def test_damage_is_refused_or_harmless(
    field: bytes, file: bytes, start: int, damage: bytes, cuts: list[int]
) -> None:
    body = body_of(field, file)
    damaged = body[:start] + damage + body[start + len(damage) :]
    with suppress(BadRequest):
        read(_Reader(BOUNDARY, 1000, "data"), cut(damaged, cuts))
