"""Versions of the protocol, and what each brought. Source: Pulsar ProtocolVersion."""

from __future__ import annotations

from typing import Final

CURRENT: Final = 21
"""The version this code speaks. A broker answers CONNECT with the lower of both sides'."""

KEEP_ALIVE: Final = 1
REDELIVER: Final = 2
BATCHES: Final = 4
BROKER_CLOSES: Final = 5
CHECKSUMS: Final = 6
CONSUMER_STATS: Final = 8
END_OF_TOPIC: Final = 9
LAST_MESSAGE_ID: Final = 12
ACTIVE_CONSUMER_CHANGE: Final = 12
AUTH_CHALLENGE: Final = 14
GET_OR_CREATE_SCHEMA: Final = 15
ACK_RECEIPTS: Final = 17
ENTRY_METADATA_TO_CLIENTS: Final = 18
TRANSACTION_COORDINATOR_CONNECT: Final = 19
TOPIC_MIGRATION: Final = 20
AUTO_CONSUME_SCHEMA: Final = 21
