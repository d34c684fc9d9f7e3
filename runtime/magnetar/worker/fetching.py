"""Packages named by URL: http, https and file. Read piece by piece in threads, never more than may be stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from magnetar.worker.errors import BadRequest

PIECE_BYTES = 256 * 1024
TIMEOUT_S = 60.0


def filename_of(url: str) -> str:
    """Raises BadRequest: nothing is fetched by URLs of this scheme."""
    _check_scheme(url)
    return unquote(urlsplit(url).path).rpartition("/")[2]


async def fetch(url: str, *, file_urls_allowed: bool) -> AsyncIterator[bytes]:
    """The content that `url` names. Raises BadRequest: it cannot be had."""
    _check_scheme(url)
    if urlsplit(url).scheme == "file" and not file_urls_allowed:
        raise BadRequest("packages by file: URL are not allowed by this worker's settings")
    try:
        source, announced = await asyncio.to_thread(_open, url)
        received = 0
        try:
            while piece := await asyncio.to_thread(source.read, PIECE_BYTES):
                received += len(piece)
                yield piece
            if announced is not None and received != announced:
                raise ValueError(f"it ended after {received} of {announced} bytes")
        finally:
            source.close()
    except (OSError, ValueError, HTTPException) as error:  # urllib's own errors are OSErrors.
        raise BadRequest(f"package URL {url!r} cannot be read: {error}") from error


def _check_scheme(url: str) -> None:
    if urlsplit(url).scheme not in ("http", "https", "file"):
        raise BadRequest(f"package URL {url!r}: use http:, https: or file:, or upload the package as `data`")


def _open(url: str) -> tuple[IO[Any], int | None]:
    """What to read from, and how much there is where that is told."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise ValueError(f"file: URLs name no host, as {parts.netloc!r}")
        path = Path(unquote(parts.path))
        if path.exists() and not path.is_file():  # To open a pipe would wait for somebody to write to it.
            raise ValueError(f"{path} is no plain file")
        return path.open("rb"), None
    from urllib.request import urlopen

    opened = urlopen(url, timeout=TIMEOUT_S)
    announced = opened.headers.get("Content-Length")
    return opened, None if announced is None else int(announced)
