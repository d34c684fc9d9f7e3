"""The `magnetar` command: serves a role (`standalone`, `broker`, `bookie`), or asks a platform that runs.

This is where everything is wired together, so it may import every room; and because a user waits for it, it
imports only what the named sub-command needs. Start with `main.py`; then `standalone.py`, which composes every role
in one process, and `commands/`, which speaks to the REST API. Settings: `settings/`.
"""
