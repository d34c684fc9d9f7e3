"""The `magnetar` command.

Looks at the first word and imports only what that sub-command needs: a server should be ready before a
framework for command lines would have been loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

SERVERS = ("standalone", "broker", "bookie")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in SERVERS:
        from magnetar.cli.servers import run_server

        return run_server(words[0], words[1:])
    if words[:1] in (["version"], ["--version"]):
        print(f"magnetar {version()}")
        return 0
    from magnetar.cli.application import run_client_command

    return run_client_command(words)


def version() -> str:
    """The version of the installed distribution."""
    from importlib.metadata import version as installed

    return installed("magnetar")


if __name__ == "__main__":
    sys.exit(main())
