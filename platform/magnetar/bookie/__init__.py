"""A bookie: it makes entries durable, keeps them and gives them back, and lets nobody write to a fenced ledger.

May import `magnetar.protocol`, `magnetar.metadata`, `magnetar.environment` and `magnetar.metrics`. Formats are in
`docs/formats/`. Start with `bookie.py`, the object that both a ledger client in this process and `server.py` talk to;
behind it:

    write path   journal.py (group commit) and write_cache.py, then storage.py: entry_log.py, index.py, ledger_table.py
    read path    write_cache.py, read_cache.py, storage.py
    start        opening.py: directory.py, storage.py, journal_replay.py, startup.py
    disks        several.py and shares.py: a bookie with several directories is a bookie in each
    upkeep       garbage.py, scrub.py, space.py, index_rebuild.py
    lost data    limbo.py, integrity.py
    operators    format.py, sanity.py, registration.py

The event loop owns all state of ledgers and caches; threads only move bytes: one writes the journal, one writes
storage, a few read.
"""
