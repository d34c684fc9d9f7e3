"""Which consumer gets which entry. Pure: `broker/subscription.py` does the awaiting.

`member.py` is a consumer as dispatch sees it, `candidate.py` an entry that passed the filters.
`single_active.py` serves Exclusive and Failover, `shared.py` Shared, `key_shared.py` Key_Shared;
`dispatcher.py` says what all three can do. Imports nothing but the positions of `managed_ledger` and the
hash functions of `protocol`.
"""
