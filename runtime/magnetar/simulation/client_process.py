"""A process with a production ledger client: an owner of the log, a recoverer, a repairer, or who judges at the end."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from typing import Any

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.simulation.bookie_ways import SimulatedProvider
from magnetar.simulation.cluster import Cluster
from magnetar.simulation.process_loop import Process
from magnetar.simulation.store_session import SimulatedStore


class SimulatedClient:
    def __init__(self, cluster: Cluster, seed: int, name: str) -> None:
        self._cluster = cluster
        self.dice = random.Random(seed)
        self.process = Process(cluster.loop, name)
        self.store = SimulatedStore(cluster, self.process)
        self.provider = SimulatedProvider(cluster, self.process, self.store, timeout_s=1.0)
        self.client: LedgerClient | None = None
        self.stop: Callable[[], Coroutine[Any, Any, None]] | None = None
        """Ends what runs in it cleanly, where it has something to end."""
        self.unanswered = 0
        """Appends of an owner of which it has not heard."""

    @property
    def name(self) -> str:
        return self.process.name

    def begin(self) -> LedgerClient:
        """To be called from within the process."""
        self.client = LedgerClient(
            self.store,
            self.provider,
            clock=self._cluster.clock,
            random=self.dice,
            settings=LedgerClientSettings(
                ensemble_retry_s=0.3,
                quarantine_s=0.5,
                quarantine_max_s=2.0,
                metadata_retry_s=3.0,
                replica_lag_s=self.dice.choice((0.6, 3.0)),
                explicit_lac_s=self.dice.choice((0.0, 0.2)),
                delay_ensemble_change=self.dice.random() < 0.3,
                recovery_window=self.dice.choice((1, 4, 32)),
                read_window=4,
            ),
        )
        return self.client

    def kill(self) -> None:
        if self.process.alive:
            self.process.kill()
            self._cluster.loop.call_later(1.0, self._end_session, context=self._cluster.outside)

    def _end_session(self) -> None:
        self._cluster.loop.create_task(self.store.end())
