"""What a broker and its filters' process say to each other. Pure.

A frame is its length, the length of its head, the head (JSON), and then as many pieces of bytes as the head has sizes:

    u32 length of all that follows | u32 length of the head | head | pieces
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

ACCEPT: Final = "A"
REJECT: Final = "R"
RESCHEDULE: Final = "S"

LENGTH_BYTES: Final = 4


def encode(head: dict[str, Any], pieces: Sequence[bytes | memoryview] = ()) -> bytes:
    """One frame."""
    text = json.dumps({**head, "sizes": [len(piece) for piece in pieces]}).encode()
    body = b"".join((len(text).to_bytes(4, "big"), text, *pieces))
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def decode(body: bytes) -> tuple[dict[str, Any], list[memoryview]]:
    """Head and pieces of what follows a frame's length.

    Raises:
        ValueError: it is no frame.
    """
    view = memoryview(body)
    end = 4 + int.from_bytes(view[:4], "big")
    head = json.loads(bytes(view[4:end]))
    if not isinstance(head, dict):
        raise ValueError("the head of a frame is an object")
    pieces = []
    for size in head.pop("sizes"):
        pieces.append(view[end : end + size])
        end += size
    if end != len(view):
        raise ValueError(f"a frame of {len(view)} bytes says it has {end}")
    return head, pieces
