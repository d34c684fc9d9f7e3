"""What producers and consumers need of the connection they came by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from magnetar.protocol.buffers import Buffer

if TYPE_CHECKING:
    from magnetar.broker.consumer import Consumer
    from magnetar.broker.producer import Producer


class Peer(Protocol):
    """A client, as seen from a topic. `Connection` is one; tests have simpler ones."""

    @property
    def address(self) -> str:
        """`/127.0.0.1:40222`, as stats tell it."""
        ...

    @property
    def client_version(self) -> str: ...

    @property
    def protocol_version(self) -> int: ...

    @property
    def role(self) -> str | None: ...

    @property
    def writable(self) -> bool:
        """Whether more messages may be sent now; it says so by `Consumer.connection_writable` when they may again."""
        ...

    @property
    def wants_entry_metadata(self) -> bool:
        """Whether entries go out with the broker's timestamp and index."""
        ...

    @property
    def bears_end_of_topic(self) -> bool:
        """Whether REACHED_END_OF_TOPIC does no harm to this client."""
        ...

    def send(self, frame: bytes) -> None:
        """Queue a frame; all that is queued in one turn of the loop is written at once."""
        ...

    def send_parts(self, parts: Sequence[Buffer]) -> None:
        """Queue one frame in parts."""
        ...

    def send_claim(self, frame: bytes) -> None:
        """Queue a frame that is only true while we own what it speaks of: the connection ends sooner than that it
        leaves after the lease. Messages, `send_parts`, are such frames too."""
        ...

    async def is_alive(self) -> bool:
        """Whether it answers a ping in time. Evict the holder of a name only if not."""
        ...

    def abort(self, reason: str) -> None:
        """Close without further ado: the other side is dead."""
        ...

    def publish_started(self, size: int) -> None:
        """A message is on its way to storage."""
        ...

    def publish_finished(self, size: int) -> None:
        """It is stored, or was refused."""
        ...

    def throttle(self, by: object) -> None:
        """Read nothing more from it until `by` takes that back."""
        ...

    def unthrottle(self, by: object) -> None:
        """`by` has no objections any more."""
        ...

    def forget_producer(self, producer: Producer) -> None:
        """The broker closed it: late messages to it are ignored for a while."""
        ...

    def forget_consumer(self, consumer: Consumer) -> None:
        """The broker closed it: late acknowledgements and permits are ignored."""
        ...
