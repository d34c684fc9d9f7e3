"""Worlds drawn from one seed: virtual time, bookies and metadata that fail in every way they are allowed to.

May import every room. Nothing here touches a real clock, disk or socket, so that a seed always tells the same
story. Start with `loop.py` (time), then `bookies.py` and `metadata.py` (what fails), then `ledger_world.py`
(a writer and those that recover after it, and what must hold for them).
"""
