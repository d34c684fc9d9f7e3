"""Compaction: of messages with keys, only the last of each key is kept, in a ledger beside the topic's log.

`topic_compaction.py` is what a topic has of it: when it runs, what holds, what is told. `compactor.py` reads and
writes; `survivors.py` and `messages.py`, both pure, decide what stays and cut batches; `compacted_ledger.py` is
the result, `reading.py` how a subscription reads it before the log. Imports `managed_ledger`, `ledger` and
`protocol`. Rules and format: docs/decisions/0070-compaction.md, docs/formats/broker.md.
"""
