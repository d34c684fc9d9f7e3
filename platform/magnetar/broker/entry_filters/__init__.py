"""Filters of users, in Python: which entries a subscription gets, which it never gets, and which later.

A filter is a file of the directory that the broker's settings name. It runs in a process of its own, one for all
filters of a broker; `process.py` is that process, `host.py` keeps it alive and asks it a batch at a time, `gate.py` is
what one subscription sees of it. A filter that fails, or cannot be asked, lets nothing through until it is mended:
neither is a message lost nor shown to who must not see it.
"""
