"""What a client does by default."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from magnetar.client.authentication import Authentication

CLIENT_VERSION = "Magnetar-Python-v0.1"
"""Begins with the name by which our broker knows us, and shows us each message's index."""


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Settings of a client, all in effect for each of its producers, consumers and readers."""

    operation_timeout_s: float = 30.0
    """How long a request, or the creation of a producer or consumer, may take altogether."""
    connection_timeout_s: float = 10.0
    """How long a connection and its handshake may take."""
    keep_alive_s: float = 30.0
    """A connection silent for this long is asked for a sign of life, and given up after as long again."""
    memory_limit_bytes: int = 64 * 1024 * 1024
    """What all producers together may hold without receipts."""
    max_redirects: int = 20
    """How often a lookup may be passed on."""
    partition_update_s: float = 60.0
    """How often a partitioned topic is asked whether it has grown."""
    backoff_initial_s: float = 0.1
    """The second attempt to reconnect waits this long; each further one twice as long."""
    backoff_maximum_s: float = 30.0
    """No attempt to reconnect waits longer."""
    listener_name: str | None = None
    """Which of a broker's advertised listeners to be sent to."""
    authentication: Authentication | None = None
    tls: ssl.SSLContext | None = None
    """For pulsar+ssl:// URLs; the system's default context if None."""
