"""Packages named by URL: http, https and file. Read piece by piece in threads, never more than may be stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
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
        source = await asyncio.to_thread(_open, url)
        try:
            while piece := await asyncio.to_thread(source.read, PIECE_BYTES):
                yield piece
        finally:
            source.close()
    except (OSError, ValueError) as error:  # urllib's errors are OSErrors.
        raise BadRequest(f"package URL {url!r} cannot be read: {error}") from error


def _check_scheme(url: str) -> None:
    if urlsplit(url).scheme not in ("http", "https", "file"):
        raise BadRequest(f"package URL {url!r}: use http:, https: or file:, or upload the package as `data`")


def _open(url: str) -> IO[Any]:
    parts = urlsplit(url)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise ValueError(f"file: URLs name no host, as {parts.netloc!r}")
        return open(unquote(parts.path), "rb")
    from urllib.request import urlopen

    opened: IO[Any] = urlopen(url, timeout=TIMEOUT_S)
    return opened
