"""Transactions as the rest of the broker sees them: coordinators by their numbers, and what they count together."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from magnetar.broker.errors import (
    BrokerError,
    NotAllowed,
    ServiceNotReady,
    TopicNotFound,
    TransactionCoordinatorNotFound,
)
from magnetar.broker.transactions.coordinator_topic import (
    COORDINATOR_TOPIC,
    LOG_PREFIX,
    CoordinatorTopic,
    coordinator_log,
)
from magnetar.broker.transactions.participants import Participants
from magnetar.environment.logs import get_logger
from magnetar.managed_ledger.errors import ManagedLedgerError
from magnetar.metadata.errors import MetadataError
from magnetar.policies.errors import Conflict, PoliciesError

if TYPE_CHECKING:
    from magnetar.broker.broker import Broker

log = get_logger("magnetar.broker")

_LOGS: Final = "pulsar/system/persistent"


class TransactionService:
    """The transaction side of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.participants = Participants(broker)
        self._looking: asyncio.Task[None] | None = None

    @property
    def enabled(self) -> bool:
        return self._broker.settings.transaction_coordinator_enabled

    def check_enabled(self) -> None:
        """
        Raises:
            NotAllowed: transactions are not enabled.
        """
        if not self.enabled:
            raise NotAllowed("transactions are not enabled on this broker: transaction_coordinator_enabled")

    # Coordinators.

    async def ensure_coordinators(self) -> None:
        """Make the coordinators' topic, if this is the first that asks for transactions.

        Raises:
            NotAllowed: transactions are not enabled.
        """
        self.check_enabled()
        resources = self._broker.context.resources
        if await resources.partitions(COORDINATOR_TOPIC) is not None:
            return
        try:
            await resources.create_partitioned(
                COORDINATOR_TOPIC, self._broker.settings.transaction_coordinators, {}
            )
        except Conflict:
            return  # Another was faster.
        log.info("transaction_coordinators.made", coordinators=self._broker.settings.transaction_coordinators)

    async def coordinator(self, number: int) -> CoordinatorTopic:
        """A coordinator of this broker.

        Raises:
            TransactionCoordinatorNotFound: it is another broker's, or there is none of that number.
        """
        self.check_enabled()
        try:
            topic = await self._broker.topics.get(COORDINATOR_TOPIC.partition_name(number), create=False)
        except (ServiceNotReady, TopicNotFound) as error:
            raise TransactionCoordinatorNotFound(f"coordinator {number}: {error}") from error
        if not isinstance(topic, CoordinatorTopic):
            raise TransactionCoordinatorNotFound(f"there is no coordinator {number}")
        return topic

    def coordinators(self) -> Iterator[CoordinatorTopic]:
        """Those that this broker serves now."""
        for topic in self._broker.topics.loaded():
            if isinstance(topic, CoordinatorTopic):
                yield topic

    # After a restart: ends that were under way go on, whether or not a client asks.

    def start(self) -> None:
        if self.enabled:
            self._looking = asyncio.get_running_loop().create_task(
                self._look_now_and_then(), name="transaction coordinators"
            )

    async def stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait((self._looking,))
        await self.participants.close()

    async def _look_now_and_then(self) -> None:
        while True:
            try:
                await self.look_after_coordinators()
            except (BrokerError, ManagedLedgerError, MetadataError, PoliciesError) as error:
                log.info("transaction_coordinators.not_looked_after", reason=str(error))
            except Exception:
                log.exception("transaction_coordinators.look_failed")
            await asyncio.sleep(self._broker.settings.transaction_coordinator_check_s)

    async def look_after_coordinators(self) -> None:
        """Load the coordinators that are ours, or nobody's, and have something in their logs."""
        broker = self._broker
        count = await broker.context.resources.partitions(COORDINATOR_TOPIC)
        if not count:
            return  # Nobody here ever used a transaction.
        logs = set(await broker.context.ledgers.list(_LOGS))
        for number in range(count):
            name = COORDINATOR_TOPIC.partition_name(number)
            if broker.topics.find(name) is not None:
                continue
            if coordinator_log(number).managed_ledger_name not in logs:
                continue
            if (await broker.lookup(name, take=False)).here:
                await broker.topics.get(name, create=False)


def is_coordinator(local_name: str) -> bool:
    """Whether a log of the system's namespace is a coordinator's."""
    return local_name.startswith(LOG_PREFIX)
