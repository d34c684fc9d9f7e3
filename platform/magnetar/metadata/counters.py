"""Ids that are given once and never again: ledgers, for one."""

from __future__ import annotations

import asyncio
import json

from magnetar.metadata.errors import BadVersion, MetadataError
from magnetar.metadata.store import MUST_NOT_EXIST, MetadataStore

LEDGER_IDS_PATH = "/ledgers/idgen/next"
_FORMAT = 1


class IdAllocator:
    """Gives out growing numbers, unique over all processes that share the record.

    Takes them from the store a block at a time, so that most ids cost no write. A process that dies leaves a
    gap of at most one block; an id is never given twice, whatever the store answered.
    """

    __slots__ = ("_block_size", "_end", "_lock", "_next", "_path", "_store")

    def __init__(self, store: MetadataStore, path: str = LEDGER_IDS_PATH, *, block_size: int = 32) -> None:
        self._store = store
        self._path = path
        self._block_size = block_size
        self._next = 0
        self._end = 0
        self._lock = asyncio.Lock()

    async def allocate(self) -> int:
        """The next id.

        Raises:
            StoreUnavailable: ask again; the block that may have been taken is then skipped.
        """
        async with self._lock:
            if self._next == self._end:
                self._next = await self._take_block()
                self._end = self._next + self._block_size
            self._next += 1
            return self._next - 1

    async def _take_block(self) -> int:
        while True:
            record = await self._store.get(self._path)
            first, expected = (
                (0, MUST_NOT_EXIST) if record is None else (self._decode(record.value), record.version)
            )
            try:
                await self._store.put(
                    self._path, _encode(first + self._block_size), expected_version=expected
                )
            except BadVersion:
                continue  # Another process has taken this block.
            return first

    def _decode(self, value: bytes) -> int:
        fields = json.loads(value)
        if fields.get("version") != _FORMAT:
            raise MetadataError(
                f"{self._path} has format {fields.get('version')}, this version knows {_FORMAT}: upgrade Magnetar"
            )
        return int(fields["next"])


def _encode(first_free: int) -> bytes:
    return json.dumps({"version": _FORMAT, "next": first_free}).encode()
