"""What a consumer may get: one chain of pure filters for each subscription.

Each filter sees an entry and its metadata and says yes, never, or later; the first that does not say yes
decides. What passes becomes a `Candidate`. Markers and delayed messages are filtered yet; transactions and
plug-ins join here, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING

from magnetar.broker.dispatch.candidate import Candidate
from magnetar.protocol import ack_sets
from magnetar.protocol.errors import ProtocolError
from magnetar.protocol.message import read_metadata
from magnetar.protocol.routing import key_slot, sticky_key
from magnetar.protocol.texts import text

if TYPE_CHECKING:
    from magnetar.managed_ledger import Entry, Position
    from magnetar.protocol.pulsar_pb2 import MessageMetadata


class Verdict(Enum):
    """What becomes of an entry."""

    DELIVER = auto()
    NEVER = auto()
    """No consumer may see it: it is acknowledged at once."""
    LATER = auto()
    """Not now: it stays in the backlog, and whoever holds it back brings it up again."""


EntryFilter = Callable[["Entry", "MessageMetadata"], Verdict]


def reject_markers(entry: Entry, metadata: MessageMetadata) -> Verdict:
    """Markers are the servers' own notes between the messages. Source: Pulsar Markers."""
    return Verdict.NEVER if metadata.HasField("marker_type") else Verdict.DELIVER


class Sifted:
    """What a run of entries came to."""

    __slots__ = ("candidates", "later", "never")

    def __init__(self) -> None:
        self.candidates: list[Candidate] = []
        self.never: list[Position] = []
        self.later: list[Position] = []


class FilterChain:
    """The filters of one subscription, asked in order."""

    __slots__ = ("_filters", "_keyed", "delivered", "later", "never")

    def __init__(self, filters: Sequence[EntryFilter] = (reject_markers,), *, keyed: bool = False) -> None:
        self._filters = tuple(filters)
        self._keyed = keyed
        self.delivered = 0
        self.never = 0
        self.later = 0

    def insert(self, added: EntryFilter) -> None:
        """Ask one filter more, right after the first."""
        self._filters = (*self._filters[:1], added, *self._filters[1:])

    def sift(self, entries: Iterable[Entry], ack_set: Callable[[Position], Sequence[int] | None]) -> Sifted:
        """Turn entries into candidates. An entry whose metadata cannot be read is never delivered."""
        sifted = Sifted()
        for entry in entries:
            try:
                metadata = read_metadata(entry.data)
            except ProtocolError:
                sifted.never.append(entry.position)
                continue
            for entry_filter in self._filters:
                verdict = entry_filter(entry, metadata)
                if verdict is not Verdict.DELIVER:
                    (sifted.never if verdict is Verdict.NEVER else sifted.later).append(entry.position)
                    break
            else:
                self._pass(sifted, entry, metadata, ack_set(entry.position))
        self.delivered += len(sifted.candidates)
        self.never += len(sifted.never)
        self.later += len(sifted.later)
        return sifted

    def _pass(
        self, sifted: Sifted, entry: Entry, metadata: MessageMetadata, unacked: Sequence[int] | None
    ) -> None:
        messages = messages_in(metadata)
        if unacked is not None:
            messages = ack_sets.count(unacked)
            if messages == 0:
                sifted.never.append(entry.position)
                return
        chunked = metadata.num_chunks_from_msg > 1
        sifted.candidates.append(
            Candidate(
                entry.position,
                messages,
                entry,
                key_hash=key_slot(sticky_key(metadata)) if self._keyed else 0,
                ack_set=None if unacked is None else list(unacked),
                chunk_of=text(metadata.uuid) if chunked else None,
                chunk_last=chunked and metadata.chunk_id == metadata.num_chunks_from_msg - 1,
            )
        )


def messages_in(metadata: MessageMetadata) -> int:
    """How many messages an entry holds. The field's presence makes a batch, not its value."""
    return max(1, metadata.num_messages_in_batch) if metadata.HasField("num_messages_in_batch") else 1
