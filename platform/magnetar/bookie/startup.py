"""Bringing a bookie's memory back: from the last checkpoint on, the journal is what it knew."""

from __future__ import annotations

from collections.abc import Callable

from magnetar.bookie.journal_replay import JournalReplay
from magnetar.bookie.ledger_table import LedgerState, LedgerTable
from magnetar.bookie.record import SEAL, Kind, Record, decode_explicit_lac, decode_registration
from magnetar.bookie.storage import Storage
from magnetar.bookie.write_cache import WriteCache
from magnetar.protocol.ledger_entry import ENTRY_HEADER


def replay_journal(
    replay: JournalReplay,
    table: LedgerTable,
    cache: WriteCache,
    storage: Storage,
    *,
    salvage: Callable[[], bool] = lambda: False,
) -> None:
    """Apply all records after the mark. Doing it again, after another crash, comes to the same.

    `salvage`: whether registrations may be lost, so that an entry of an unknown ledger is kept all the same.

    Raises: JournalCorrupt, and what writing to storage raises when there is more than the cache holds.
    """
    for record in replay:
        if record.kind is Kind.ENTRY:
            _replay_entry(record, table, cache, storage, salvage)
        else:
            _replay_ledger(record, table)


def _replay_entry(
    record: Record, table: LedgerTable, cache: WriteCache, storage: Storage, salvage: Callable[[], bool]
) -> None:
    ledger_id, entry_id, lac = ENTRY_HEADER.unpack(record.body[0])[:3]
    state = table.get(ledger_id)
    if state is None:
        if record.body[0] == SEAL or not salvage():
            return  # Its registration is behind the mark, and yet it is unknown: it was deleted since.
        state = table.register(ledger_id, b"")  # Whoever asks for it first brings the key.
    size = sum(map(len, record.body))
    if not cache.has_room(size):
        storage.write_entries(cache.swap().sorted_entries())
        cache.flushed()
    cache.put(ledger_id, entry_id, record.body, size)
    state.last_entry = max(state.last_entry, entry_id)
    state.lac = max(state.lac, lac)


def _replay_ledger(record: Record, table: LedgerTable) -> None:
    body = record.body[0]
    if record.kind is Kind.EXPLICIT_LAC:
        ledger_id, lac, key = decode_explicit_lac(body)
        state = _known(table, ledger_id, key)
        if lac > state.explicit_lac:
            state.explicit_lac = lac
            state.lac = max(state.lac, lac)
            table.changed(state)
        return
    ledger_id, key = decode_registration(body)
    state = _known(table, ledger_id, key)
    if record.kind is Kind.FENCE and not state.fenced:
        state.fenced = True
        table.changed(state)


def _known(table: LedgerTable, ledger_id: int, key: bytes) -> LedgerState:
    state = table.get(ledger_id)
    return table.register(ledger_id, key) if state is None else state
