"""How many producers or consumers of a topic come from one host. Source: Pulsar `maxSameAddressProducersPerTopic`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from magnetar.broker.peer import Peer


class Connected(Protocol):
    """A producer or a consumer."""

    peer: Peer


def host(address: str) -> str:
    """`/127.0.0.1:40222` without its port."""
    return address.rpartition(":")[0]


def count(connected: Iterable[Connected], newcomer: Peer) -> int:
    """How many of them are on the newcomer's host."""
    here = host(newcomer.address)
    return sum(host(each.peer.address) == here for each in connected)
