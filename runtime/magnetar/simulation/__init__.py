"""Worlds drawn from one seed: virtual time, bookies and metadata that fail in every way they are allowed to.

May import every room. Nothing here touches a real clock, disk or socket, so that a seed always tells the same
story. Two families: `ledger_world.py` and `log_world.py`, quick, over bookies that are rules in memory; and
`storage_world.py`, where all of storage is production code, on the processes of `process_loop.py`, the disks of
`disk.py`, watched by `judge.py`. `mutations.py` breaks the protocol on purpose; `python -m magnetar.simulation` runs
everything. Start with `storage_world.py`.
"""
