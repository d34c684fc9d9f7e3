"""What every open ledger shares with the client it was opened by."""

from __future__ import annotations

import random
from dataclasses import dataclass

from magnetar.environment.clock import Clock
from magnetar.ledger.bookie_health import BookieHealth
from magnetar.ledger.counts import Counts
from magnetar.ledger.ensembles import Ensembles
from magnetar.ledger.owned_tasks import OwnedTasks
from magnetar.ledger.placement import Placement
from magnetar.ledger.registry import LedgerRegistry
from magnetar.ledger.replica_budget import ReplicaBudget
from magnetar.ledger.replica_marks import ReplicaMarks
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.ledger.supervision import Supervision
from magnetar.protocol.bookie import BookieProvider


@dataclass(frozen=True, slots=True)
class Surroundings:
    registry: LedgerRegistry
    bookies: BookieProvider
    placement: Placement
    ensembles: Ensembles
    clock: Clock
    dice: random.Random
    settings: LedgerClientSettings
    tasks: OwnedTasks
    master_key: bytes
    health: BookieHealth
    budget: ReplicaBudget
    marks: ReplicaMarks
    counts: Counts
    supervision: Supervision
