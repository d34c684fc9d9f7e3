"""Brokers: connections, topics, producers, subscriptions, dispatch, deduplication, schemas, ownership.

A broker keeps nothing of its own: logs live in `managed_ledger`, names and policies in `metadata`. It may
import the floors below it (`managed_ledger`, `policies`, `security`, `metadata`, `protocol`, `naming`,
`environment`) and nothing above.

Start with `broker.py` (what a process builds), then follow a message: `connection.py` reads frames,
`handlers/` holds one module per subject of the protocol, `topic.py` stores, `subscription.py` delivers.
What decides is pure and stands apart: `deduplication.py`, `exclusivity.py`, `filters.py` and `dispatch/`.
"""
