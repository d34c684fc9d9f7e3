"""What a subscription has still to get, counted by reading it: entries, messages, and what its filters say to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from magnetar.broker.filters import EntryFilter, Verdict, messages_in
from magnetar.protocol.errors import ProtocolError
from magnetar.protocol.message import read_metadata

if TYPE_CHECKING:
    from collections.abc import Sequence

    from magnetar.broker.subscription import Subscription
    from magnetar.environment.clock import Clock
    from magnetar.managed_ledger import Entry, Position
    from magnetar.protocol.pulsar_pb2 import MessageMetadata

READ_ENTRIES: Final = 500
READ_BYTES: Final = 4 * 1024 * 1024


@dataclass(slots=True)
class BacklogAnalysis:
    """What was found."""

    entries: int = 0
    messages: int = 0
    marker_messages: int = 0
    accepted_entries: int = 0
    accepted_messages: int = 0
    rejected_entries: int = 0
    rejected_messages: int = 0
    rescheduled_entries: int = 0
    rescheduled_messages: int = 0
    first: Position | None = None
    last: Position | None = None
    aborted: bool = False
    """There is more than was looked at."""


async def analyze(
    subscription: Subscription,
    filters: Sequence[EntryFilter],
    clock: Clock,
    *,
    start: Position | None = None,
    entries_max: int,
    seconds_max: float,
) -> BacklogAnalysis:
    """Read what is not acknowledged, from `start` or from the cursor on, and disturb nobody: no cursor moves."""
    found = BacklogAnalysis()
    cursor, ledger = subscription.cursor, subscription.topic.ledger
    deadline = clock.monotonic() + seconds_max
    position = start if start is not None else cursor.mark_delete.following
    looked_at = 0
    while (first := ledger.ledgers.existing_from(position)) is not None:
        if looked_at >= entries_max or clock.monotonic() >= deadline:
            found.aborted = True
            return found
        entries = await ledger.read_run(first, min(READ_ENTRIES, entries_max - looked_at), READ_BYTES)
        for entry in entries:
            if not cursor.is_acknowledged(entry.position):
                _count(found, entry, filters)
        looked_at += len(entries)
        position = entries[-1].position.following
    return found


def not_due(now_ms: int) -> EntryFilter:
    """Holds back what is to be delivered later than `now_ms`."""

    def judge(entry: Entry, metadata: MessageMetadata) -> Verdict:
        return Verdict.LATER if metadata.deliver_at_time > now_ms else Verdict.DELIVER

    return judge


def _count(found: BacklogAnalysis, entry: Entry, filters: Sequence[EntryFilter]) -> None:
    found.entries += 1
    if found.first is None:
        found.first = entry.position
    found.last = entry.position
    try:
        metadata = read_metadata(entry.data)
    except ProtocolError:
        found.rejected_entries += 1  # Nobody will ever get it.
        return
    messages = messages_in(metadata)
    found.messages += messages
    if metadata.HasField("marker_type"):
        found.marker_messages += messages
    verdict = next(
        (said for each in filters if (said := each(entry, metadata)) is not Verdict.DELIVER), Verdict.DELIVER
    )
    if verdict is Verdict.DELIVER:
        found.accepted_entries += 1
        found.accepted_messages += messages
    elif verdict is Verdict.NEVER:
        found.rejected_entries += 1
        found.rejected_messages += messages
    else:
        found.rescheduled_entries += 1
        found.rescheduled_messages += messages
