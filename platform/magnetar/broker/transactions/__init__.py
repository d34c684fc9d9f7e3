"""Transactions: messages and acknowledgements of many topics that count together, or not at all.

Pure, and to be read first: `coordinator_state.py` (what became of each transaction), `visibility.py` (which entries
of a topic may be seen yet), `pending_acks.py` (what a subscription's consumers have acknowledged provisionally),
`ended.py` (whose late messages are refused). Around them: `coordinator_topic.py` keeps a coordinator with its log
(`record_log.py`), `participants.py` tells topics and subscriptions how a transaction ended, `buffer.py` and
`pending_ack_store.py` are the topic's and the subscription's side, `service.py` is what the rest of the broker asks.

May import the broker's own modules, `managed_ledger`, `protocol`, `naming` and, to reach other brokers, `client`.
"""
