"""What everything in a broker shares: its settings, its clock, and the rooms below it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from magnetar.broker.dispatch.unacked_share import UnackedBudget
from magnetar.broker.entry_filters.host import EntryFilterHost
from magnetar.broker.limits import PublishBudget
from magnetar.broker.rates.broker_rates import BrokerRates
from magnetar.environment.logs import get_logger

if TYPE_CHECKING:
    import random

    from magnetar.broker.lease import Lease
    from magnetar.broker.schemas import SchemaRegistry
    from magnetar.broker.settings import BrokerSettings
    from magnetar.broker.transactions.participants import Participants
    from magnetar.environment.clock import Clock
    from magnetar.managed_ledger import ManagedLedgerFactory
    from magnetar.metadata.store import MetadataStore
    from magnetar.policies.resources import Resources
    from magnetar.security.authorizer import Authorizer

log = get_logger("magnetar.broker")


class TaskOwner:
    """Keeps tasks alive that no caller waits for, tells when they fail, and ends with them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any], what: str) -> asyncio.Task[Any]:
        """Run `work` beside everything else; `what` names it should it fail."""
        task = asyncio.get_running_loop().create_task(work, name=what)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error(
                "background_work.failed", work=task.get_name(), reason=f"{type(error).__name__}: {error}"
            )

    async def drain(self) -> None:
        """Wait until everything has ended."""
        while self._tasks:
            await asyncio.wait(self._tasks)


@dataclass(slots=True)
class BrokerContext:
    """Handed to topics and connections, so that neither needs to know the broker that made it."""

    settings: BrokerSettings
    clock: Clock
    random: random.Random
    metadata: MetadataStore
    ledgers: ManagedLedgerFactory
    resources: Resources
    authorizer: Authorizer
    schemas: SchemaRegistry
    budget: PublishBudget
    lease: Lease
    participants: Participants | None = None
    """By whom topics and subscriptions are told how transactions end; set by the broker."""
    tasks: TaskOwner = field(default_factory=TaskOwner)
    unacked: UnackedBudget = field(init=False)
    rates: BrokerRates = field(init=False)
    entry_filters: EntryFilterHost = field(init=False)

    def __post_init__(self) -> None:
        self.unacked = UnackedBudget(
            self.settings.max_unacked_messages_per_broker, self.settings.max_unacked_share_when_blocked
        )
        settings = self.settings
        self.entry_filters = EntryFilterHost(
            settings.entry_filters_directory, settings.entry_filter_timeout_s
        )
        self.rates = BrokerRates(self.settings, self.resources, self.clock, self.tasks)
