"""A message as filters see it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from magnetar.protocol.message import SplitMessage, split_message
from magnetar.protocol.texts import text

if TYPE_CHECKING:
    from magnetar.protocol.pulsar_pb2 import MessageMetadata


class FilteredMessage:
    """One entry: a message, or a batch of them, in which case all of them share what is decided."""

    def __init__(
        self,
        data: bytes | memoryview,
        message_id: tuple[int, int],
        *,
        topic: str,
        subscription: str,
        subscription_properties: Mapping[str, str],
    ) -> None:
        self._data = data
        self.message_id = message_id
        """Ledger and entry."""
        self.topic = topic
        self.subscription = subscription
        self.subscription_properties = subscription_properties

    @cached_property
    def _split(self) -> SplitMessage:
        return split_message(memoryview(self._data), verify=False)

    @property
    def metadata(self) -> MessageMetadata:
        """All that the producer said; of a batch, what it said of the whole."""
        return self._split.metadata

    @property
    def payload(self) -> bytes:
        """The bytes as they are stored: compressed, encrypted or several in one, if they were sent so."""
        return bytes(self._split.payload)

    @cached_property
    def properties(self) -> dict[str, str]:
        return {text(each.key): text(each.value) for each in self.metadata.properties}

    @property
    def key(self) -> str | None:
        return text(self.metadata.partition_key) if self.metadata.HasField("partition_key") else None

    @property
    def producer_name(self) -> str:
        return text(self.metadata.producer_name)

    @property
    def publish_time_ms(self) -> int:
        return self.metadata.publish_time

    @property
    def event_time_ms(self) -> int:
        """0: none was given."""
        return self.metadata.event_time
