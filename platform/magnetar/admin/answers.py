"""What a route answers with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from magnetar.admin import codes
from magnetar.policies.model import PolicyModel

JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"
BYTES: Final = "application/octet-stream"

LIST_PIECE: Final = 1000
"""Items of a list that are told at once."""


@dataclass(slots=True)
class Answer:
    """A status, headers and a body, whole or in parts."""

    status: int = 200
    body: bytes | AsyncGenerator[bytes] = b""
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)


Result: TypeAlias = (
    "Answer | PolicyModel | dict[str, Any] | list[Any] | tuple[Any, ...] | str | int | float | bool | None"
)
"""What a route returns: an answer, or what is to be told as JSON; None is Pulsar's null: 204 and no body."""


def encode(value: Any) -> bytes:
    """JSON without spaces."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=_plain).encode(
        "utf-8", "surrogateescape"
    )


def _plain(value: Any) -> Any:
    if isinstance(value, PolicyModel):
        return value.to_json()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return str(value)


def as_answer(result: Result) -> Answer:
    """The answer that a route's result stands for."""
    if isinstance(result, Answer):
        return result
    if result is None:
        return Answer(204)
    if isinstance(result, (list, tuple)) and len(result) > LIST_PIECE:
        return Answer(200, _list_pieces(result))
    return Answer(200, encode(result))


async def _list_pieces(items: Sequence[Any]) -> AsyncGenerator[bytes]:
    """A long list, so many items at a time: others have a turn after each piece."""
    for start in range(0, len(items), LIST_PIECE):
        yield (b"," if start else b"[") + encode(items[start : start + LIST_PIECE])[1:-1]
        await asyncio.sleep(0)
    yield b"]"


def done() -> Answer:
    """200 and nothing to say: what clusters answer where everything else says 204."""
    return Answer(200)


def text(body: str) -> Answer:
    """200, not JSON."""
    return Answer(200, body.encode(), TEXT)


def reason(status: int, told: str, code: str = "", **headers: str) -> Answer:
    """A refusal: why, in words, and for machines."""
    return Answer(status, encode({"reason": told, "code": code or codes.of_status(status)}), headers=headers)
