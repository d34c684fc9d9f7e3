"""Ports to listen on, and the addresses under which others find them."""

from __future__ import annotations

import errno
import socket

from magnetar.cli.errors import CannotServe

_EVERYWHERE = ("0.0.0.0", "::")


def check_port(host: str, port: int, option: str) -> int:
    """The port to listen on: `port`, or one that is free now if it is 0.

    Raises:
        CannotServe: another process listens there, or the host is not this machine's.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            return int(probe.getsockname()[1])
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            reason = (
                f"port {port} on {host} is in use; stop what listens there, or choose another with {option}"
            )
        else:
            reason = f"cannot listen on {host}:{port}: {error.strerror or error}; see --host and {option}"
        raise CannotServe(reason) from error


def reachable(host: str) -> str:
    """What others can connect to where a server listens on `host`."""
    return socket.gethostname() if host in _EVERYWHERE else host
