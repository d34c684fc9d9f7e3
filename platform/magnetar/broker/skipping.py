"""Single messages that a subscription is to get no more: what was to come later is taken back so, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from magnetar.broker.errors import InvalidPosition
from magnetar.broker.filters import messages_in
from magnetar.managed_ledger.position import Position
from magnetar.protocol import ack_sets
from magnetar.protocol.message import read_metadata

if TYPE_CHECKING:
    from magnetar.broker.subscription import Subscription


class Skipped(NamedTuple):
    """A message."""

    position: Position
    batch_index: int = -1
    """Its place in the batch at that position; below 0: all of the entry."""


async def skip_messages(subscription: Subscription, messages: Sequence[Skipped]) -> None:
    """Acknowledge messages, whoever has them. Durable when it returns.

    Raises:
        InvalidPosition: one lies beyond the topic's end.
        MessageNotFound: an entry of which a part is meant is not there.
    """
    cursor, last = subscription.cursor, subscription.last_position
    whole = [each.position for each in messages if each.batch_index < 0]
    parts: dict[Position, list[int]] = {}
    for position, batch_index in messages:
        if position > last:
            raise InvalidPosition(
                f"{position.ledger_id}:{position.entry_id} lies beyond the end of the topic"
            )
        if batch_index >= 0:
            parts.setdefault(position, []).append(batch_index)
    left: list[tuple[Position, list[int]]] = []
    for position, indexes in parts.items():
        entry = await subscription.topic.read_entry(position)
        size = messages_in(read_metadata(entry.data))
        unacked = ack_sets.without(ack_sets.all_unacked(size), [each for each in indexes if each < size])
        known = cursor.ack_set(position)
        unacked = unacked if known is None else ack_sets.and_(known, unacked)
        if ack_sets.is_empty(unacked):
            whole.append(position)
        else:
            left.append((position, unacked))
    cursor.acknowledge(left)
    subscription.skip_entries(whole)
    await cursor.flush()
