"""The index: from entry to its place in an entry log, in a RocksDB. Derived data; see `docs/formats/index.md`.

The binding holds the interpreter's lock in `get` and `write`, so batches are small; syncing and flushing release it.
RocksDB is imported when an index is opened.
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from magnetar.bookie.entry_log import HEADER_BYTES, Location, StoredRecord

VERSION: Final = 1
_KEY = struct.Struct(">QQ")
_PLACE = struct.Struct(">IQI")
_STATE_KEY = b"\xff" * 16 + b"state"
_LAST = 2**64 - 1
_BATCH = 500
"""Keys a write: about a fifth of a millisecond under the interpreter's lock."""


class IndexUnusable(Exception):
    """RocksDB refused; what it refused is in the message. The index can be rebuilt from the entry logs."""


@dataclass(frozen=True, slots=True)
class IndexState:
    """How far the index follows the entry logs, and whether what it lacks is known to be lacking."""

    instance: str
    log: int = 0
    offset: int = HEADER_BYTES
    doubt: str | None = None


class EntryIndex:
    """Open on construction. Writes belong to the storage thread; reads may come from any."""

    def __init__(self, path: Path) -> None:
        """Raises: IndexUnusable."""
        import rocksdict  # Loading it takes longer than all else here.

        self._rocks = rocksdict
        self.path = path
        self.state: IndexState | None = None
        """None: there is nothing in it that this version can read."""
        try:
            self._db: Any = rocksdict.Rdict(str(path), _options(rocksdict))
            encoded = self._db.get(_STATE_KEY)
        except Exception as error:  # The binding raises nothing more precise.
            raise IndexUnusable(f"index {path} cannot be opened: {error}") from error
        if encoded is not None:
            self.state = _decode_state(encoded)

    def get(self, ledger_id: int, entry_id: int) -> Location | None:
        try:
            place = self._db.get(_KEY.pack(ledger_id, entry_id))
        except Exception as error:
            raise IndexUnusable(f"index {self.path}: {error}") from error
        return None if place is None else Location(*_PLACE.unpack(place))

    def last(self, ledger_id: int) -> tuple[int, Location] | None:
        """The highest entry of a ledger and its place."""
        try:
            cursor = self._db.iter()
            cursor.seek_for_prev(_KEY.pack(ledger_id, _LAST))
            cursor.status()
            if not cursor.valid():
                return None
            key, place = cursor.key(), cursor.value()
        except Exception as error:
            raise IndexUnusable(f"index {self.path}: {error}") from error
        found_ledger, entry_id = _KEY.unpack(key)
        return (entry_id, Location(*_PLACE.unpack(place))) if found_ledger == ledger_id else None

    def entry_ids(self, ledger_id: int) -> Iterator[int]:
        """The entries known of a ledger, rising."""
        try:
            cursor = self._db.iter()
            cursor.seek(_KEY.pack(ledger_id, 0))
            while cursor.valid() and (key := cursor.key()) != _STATE_KEY:
                found_ledger, entry_id = _KEY.unpack(key)
                if found_ledger != ledger_id:
                    break
                yield entry_id
                cursor.next()
            cursor.status()
        except Exception as error:
            raise IndexUnusable(f"index {self.path}: {error}") from error

    def places(self) -> Iterator[StoredRecord]:
        """All it knows, in the order of ledgers and entries."""
        try:
            cursor = self._db.iter()
            cursor.seek_to_first()
            while cursor.valid():
                key = cursor.key()
                if key != _STATE_KEY:
                    ledger_id, entry_id = _KEY.unpack(key)
                    yield StoredRecord(ledger_id, entry_id, Location(*_PLACE.unpack(cursor.value())))
                cursor.next()
            cursor.status()
        except Exception as error:
            raise IndexUnusable(f"index {self.path}: {error}") from error

    def put(self, records: Sequence[StoredRecord], state: IndexState) -> None:
        """Note where records lie, and with the last of them that the index follows up to `state`."""
        for start in range(0, len(records), _BATCH):
            batch = self._rocks.WriteBatch(raw_mode=True)
            put, pack_key, pack_place = batch.put, _KEY.pack, _PLACE.pack
            for ledger_id, entry_id, place in records[start : start + _BATCH]:
                put(pack_key(ledger_id, entry_id), pack_place(*place))
            if start + _BATCH >= len(records):
                batch.put(_STATE_KEY, _encode_state(state))
            self._write(batch)
        if not records:
            self.put_state(state)
        self.state = state

    def put_state(self, state: IndexState) -> None:
        batch = self._rocks.WriteBatch(raw_mode=True)
        batch.put(_STATE_KEY, _encode_state(state))
        self._write(batch)
        self.state = state

    def doubt(self, reason: str) -> None:
        """From now on, and over restarts, what is not found here may exist all the same."""
        if self.state is not None and self.state.doubt is None:
            self.put_state(replace(self.state, doubt=reason))

    def delete_ledgers(self, ledger_ids: Iterable[int]) -> None:
        try:
            for ledger_id in ledger_ids:
                self._db.delete_range(_KEY.pack(ledger_id, 0), _KEY.pack(ledger_id, _LAST))
                self._db.delete(_KEY.pack(ledger_id, _LAST))
        except Exception as error:
            raise IndexUnusable(f"index {self.path}: {error}") from error

    def sync(self) -> None:
        """Make what was written survive a power cut."""
        try:
            self._db.flush_wal(True)
        except Exception as error:
            raise IndexUnusable(f"index {self.path} cannot be synced: {error}") from error

    def close(self) -> None:
        self._db.close()

    def _write(self, batch: Any) -> None:
        try:
            self._db.write(batch)
        except Exception as error:
            raise IndexUnusable(f"index {self.path} cannot be written: {error}") from error


def remove_index(path: Path) -> None:
    """Throw an index away, to be rebuilt."""
    shutil.rmtree(path, ignore_errors=True)


def _encode_state(state: IndexState) -> bytes:
    return json.dumps(
        {
            "version": VERSION,
            "instance": state.instance,
            "log": state.log,
            "offset": state.offset,
            "doubt": state.doubt,
        }
    ).encode()


def _decode_state(encoded: bytes) -> IndexState | None:
    try:
        fields = json.loads(encoded)
        if fields["version"] != VERSION:
            return None
        return IndexState(fields["instance"], fields["log"], fields["offset"], fields["doubt"])
    except (ValueError, KeyError, TypeError):
        return None


def _options(rocksdict: Any) -> Any:
    """Small: the index is a few dozen bytes an entry, and a standalone platform counts megabytes."""
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(4 << 20)
    options.set_max_write_buffer_number(3)
    options.set_max_total_wal_size(16 << 20)
    options.set_max_open_files(128)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(1 << 20)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_compression_type(rocksdict.DBCompressionType.none())
    table = rocksdict.BlockBasedOptions()
    table.set_block_cache(rocksdict.Cache(4 << 20))
    table.set_bloom_filter(10, False)
    options.set_block_based_table_factory(table)
    return options
