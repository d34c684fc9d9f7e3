"""The `magnetar` command.

Looks at the first word and imports only what that sub-command needs: a server should be ready before a
framework for command lines would have been loaded.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

SERVERS = ("standalone", "broker", "bookie", "autorecovery", "worker")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in SERVERS and not (words[1:] and words[1].isidentifier()):
        # What is followed by another word is an operator's command: `magnetar bookie list`.
        if arguments is None:
            _end_at_once_when_told()
        from magnetar.cli.servers import run_server

        return run_server(words[0], words[1:])
    if words[:1] in (["version"], ["--version"]):
        print(f"magnetar {version()}")
        return 0
    from magnetar.cli.application import run_client_command

    try:
        return run_client_command(words)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _end_at_once_when_told() -> None:
    """Until the loop takes the signals over there is nothing to drain, and nobody wants to see where it stood.

    A handler and not the default, which the first process of a container would not get.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: os._exit(128 + number))


def version() -> str:
    """The version of the installed distribution."""
    from importlib.metadata import version as installed

    return installed("magnetar")


if __name__ == "__main__":
    sys.exit(main())
