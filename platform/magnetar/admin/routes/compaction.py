"""…/compaction: have a topic compacted, and how that goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from magnetar.admin.routes.targets import ONE, stored_parts
from magnetar.admin.routing import Guards, Route
from magnetar.broker.errors import CompactionRunning
from magnetar.security.authorizer import Action

if TYPE_CHECKING:
    from magnetar.admin.call import Call

_WORST_FIRST: Final = ("RUNNING", "ERROR", "SUCCESS", "NOT_RUN")


async def start(call: Call) -> None:
    """Compact a topic, or all its partitions; it goes on after the answer. 409 where that is under way."""
    refused: CompactionRunning | None = None
    started = 0
    async for topic in stored_parts(call):
        try:
            topic.compaction.start()
            started += 1
        except CompactionRunning as error:
            refused = error
    if refused is not None and not started:
        raise refused


async def status(call: Call) -> dict[str, Any]:
    """NOT_RUN, RUNNING, SUCCESS or ERROR; of partitions what most calls for attention."""
    told = [(each.compaction.status, each.compaction.last_error) async for each in stored_parts(call)]
    worst = min(told, key=lambda each: _WORST_FIRST.index(each[0]), default=("NOT_RUN", ""))
    return {"status": worst[0], "lastError": worst[1]}


ROUTES: Final = (
    Route("PUT", f"{ONE}/compaction", start, Guards.TOPIC, Action.ADMINISTER_TOPIC),
    Route("GET", f"{ONE}/compaction", status, Guards.TOPIC, Action.READ_STATS),
)
