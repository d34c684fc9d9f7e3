"""Autorecovery in one process: a candidate for the auditor's office, and a worker."""

from __future__ import annotations

import random
from collections.abc import Iterator

from magnetar.autorecovery.auditor import Auditor
from magnetar.autorecovery.settings import AutorecoverySettings
from magnetar.autorecovery.worker import ReplicationWorker
from magnetar.environment.clock import Clock
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.store import MetadataStore
from magnetar.metrics.sample import Sample, counter, gauge
from magnetar.protocol.bookie import BookieProvider


class Autorecovery:
    """In a process of its own, or beside a bookie. The more there are, the faster repairs go."""

    def __init__(
        self,
        store: MetadataStore,
        ledgers: LedgerClient,
        provider: BookieProvider,
        *,
        clock: Clock,
        dice: random.Random,
        settings: AutorecoverySettings,
        name: str,
    ) -> None:
        """
        Args:
            store: the bookies' metadata store.
            ledgers: a client over `store` and `provider`; best with no entries of others on its connections.
            name: tells this process from every other of the cluster, e.g. the bookie's id.
        """
        self.auditor = Auditor(store, ledgers, provider, clock=clock, settings=settings, name=name)
        self.worker = ReplicationWorker(
            store, ledgers, provider, clock=clock, dice=dice, settings=settings, name=name
        )
        self._name = name

    def start(self) -> None:
        self.auditor.start()
        self.worker.start()

    async def stop(self) -> None:
        """End after what is under way; an auditor steps down, locks are given back."""
        await self.worker.stop()
        await self.auditor.stop()

    def metrics(self) -> Iterator[Sample]:
        """BookKeeper's names where it has one."""
        labels = {"autorecovery": self._name}
        auditor, worker = self.auditor, self.worker
        yield gauge("auditor_leading", int(auditor.leading), labels)
        yield gauge("auditor_bookies_away", auditor.away, labels)
        yield counter("auditor_ledgers_marked_total", auditor.marked, labels)
        yield counter("auditor_marks_cancelled_total", auditor.cancelled, labels)
        yield gauge("auditor_NUM_LEDGERS_SHARING_A_FAILURE_DOMAIN", auditor.sharing, labels)
        yield gauge("auditor_NUM_UNDER_REPLICATED_LEDGERS", worker.waiting, labels)
        yield counter("replication_worker_NUM_ENTRIES_WRITTEN", worker.counts.entries, labels)
        yield counter("replication_worker_NUM_BYTES_WRITTEN", worker.counts.bytes, labels)
        yield counter("replication_worker_NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED", worker.repaired, labels)
        yield counter("replication_worker_NUM_REPAIRS_LEFT", worker.failed, labels)
        yield gauge("replication_worker_NUM_LEDGERS_WITH_LOST_ENTRIES", worker.with_lost, labels)
