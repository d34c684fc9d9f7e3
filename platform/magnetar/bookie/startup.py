"""Bringing a bookie's memory back: from the last checkpoint on, the journal is what it knew."""

from __future__ import annotations

from collections.abc import Callable

from magnetar.bookie.journal_replay import JournalReplay
from magnetar.bookie.ledger_table import LedgerState, LedgerTable
from magnetar.bookie.record import (
    SEAL,
    EntryRun,
    JournalledEntry,
    Kind,
    Record,
    decode_explicit_lac,
    decode_registration,
)
from magnetar.bookie.storage import Storage
from magnetar.bookie.write_cache import WriteCache


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
    for found in replay.runs():
        if not isinstance(found, EntryRun):
            _replay_ledger(found, table)
            continue
        entries = found.entries
        if not _note_tails(entries, table):
            entries = _known(entries, table, salvage())
            _note_tails(entries, table)
        done = 0
        while (done := cache.put_run(entries, done)) < len(entries):
            storage.write_entries(cache.swap().sorted_entries())
            cache.flushed()


def _note_tails(entries: list[JournalledEntry], table: LedgerTable) -> bool:
    """What the last entries and LACs are now. False where not all of the ledgers are known."""
    get = table.get
    for ledger_id, entry_id, lac, _, _ in entries:
        state = get(ledger_id)
        if state is None:
            return False
        if entry_id > state.last_entry:
            state.last_entry = entry_id
        if lac > state.lac:
            state.lac = lac
    return True


def _known(entries: list[JournalledEntry], table: LedgerTable, salvage: bool) -> list[JournalledEntry]:
    """Those to be kept. A registration is behind the mark, so a ledger that is unknown all the same was deleted since."""
    if salvage:
        for ledger_id, _, _, _, parts in entries:
            if ledger_id not in table and parts[0] != SEAL:
                table.register(ledger_id, b"")  # Whoever asks for it first brings the key.
    return [entry for entry in entries if entry[0] in table]


def _replay_ledger(record: Record, table: LedgerTable) -> None:
    body = record.body[0]
    if record.kind is Kind.EXPLICIT_LAC:
        ledger_id, lac, key = decode_explicit_lac(body)
        state = _registered(table, ledger_id, key)
        if lac > state.explicit_lac:
            state.explicit_lac = lac
            state.lac = max(state.lac, lac)
            table.changed(state)
        return
    ledger_id, key = decode_registration(body)
    state = _registered(table, ledger_id, key)
    if record.kind is Kind.FENCE and not state.fenced:
        state.fenced = True
        table.changed(state)


def _registered(table: LedgerTable, ledger_id: int, key: bytes) -> LedgerState:
    state = table.get(ledger_id)
    return table.register(ledger_id, key) if state is None else state
