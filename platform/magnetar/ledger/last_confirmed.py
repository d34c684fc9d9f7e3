"""What is confirmed of a ledger that somebody else writes, as its bookies know it."""

from __future__ import annotations

import asyncio

from magnetar.environment.logs import get_logger
from magnetar.ledger.coverage import covers
from magnetar.ledger.errors import ReadFailed
from magnetar.ledger.metadata import LedgerMetadata
from magnetar.ledger.surroundings import Surroundings
from magnetar.protocol.bookie import BookieStatus
from magnetar.protocol.ledger_entry import EntryCorrupt, decode_entry

log = get_logger("magnetar.ledger")


async def read_last_confirmed(metadata: LedgerMetadata, surroundings: Surroundings) -> int:
    """A lower bound of what is confirmed: good for reading, not for closing.

    All bookies of the last ensemble are asked; those that do not answer are not waited for once the others are so
    many that no entry can have been acknowledged without them. Fewer will do if there are no more.

    Raises:
        ReadFailed: not one of them answers.
    """
    fragment = metadata.last_fragment
    asked = {
        surroundings.tasks.start(_ask(metadata.ledger_id, bookie, surroundings)): slot
        for slot, bookie in enumerate(fragment.ensemble)
    }
    pending = set(asked)
    known: set[int] = set()
    highest = fragment.first_entry - 1
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            lac = task.result()
            if lac is not None:
                known.add(asked[task])
                highest = max(highest, lac)
        if covers(len(fragment.ensemble), fragment.write_quorum, fragment.ack_quorum, known):
            break
    if not known:
        raise ReadFailed(metadata.ledger_id, highest + 1, f"none of {', '.join(fragment.ensemble)} answers")
    return highest


async def _ask(ledger_id: int, bookie: str, surroundings: Surroundings) -> int | None:
    """What a bookie knows to be confirmed; None if it cannot be told."""
    answer = await surroundings.bookies.connection(bookie).read_lac(ledger_id)
    if answer.status.is_negative:
        return -1
    if answer.status is not BookieStatus.OK:
        return None
    if answer.entry:
        try:
            decode_entry(answer.entry, expect_ledger=ledger_id)
        except EntryCorrupt as error:
            log.warning("replica.corrupt", bookie=bookie, ledger_id=ledger_id, reason=str(error))
            return None
    return answer.lac
