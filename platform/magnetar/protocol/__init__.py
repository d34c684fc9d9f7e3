"""Pulsar's binary protocol as values and bytes: frames, commands, metadata, batches, ids. No I/O.

May import protobuf, and, where first used, the checksum and compression libraries; nothing of the
other rooms. Start with `frames.py` (what a connection reads), `commands.py` (what it writes) and
`message.py` (what follows a command); `pulsar.proto` names every field. The bookie's frames live here
too, in the modules that begin with `bookie`, because both of its ends do.
"""
