"""Metadata: small versioned records in a tree, with ephemerals, watches, locks and election.

One interface (`store.py`), three stores behind it: `memory.py` for tests and simulation, `rocksdb.py` for a
platform that runs alone, `zookeeper.py` for a cluster; `opening.py` opens the one an address names. They pass
one contract test-suite (`tests/integration/metadata/`). On top stand `locks.py`, `election.py` and `counters.py`,
which need nothing but the interface.

May import `magnetar.environment`. Start with `store.py`; `tree.py` holds the semantics the first two share.
"""
