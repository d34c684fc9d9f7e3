"""The ledger client: create, open, recover and delete ledgers."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

from magnetar.environment.clock import Clock
from magnetar.environment.logs import get_logger
from magnetar.ledger.bookie_health import BookieHealth, HealthRules
from magnetar.ledger.bookie_racks import BookieRacks
from magnetar.ledger.counts import Counts
from magnetar.ledger.ensembles import Ensembles
from magnetar.ledger.errors import MetadataUnavailable
from magnetar.ledger.groups import NO_GROUPS, BookieGroups
from magnetar.ledger.last_confirmed import read_last_confirmed
from magnetar.ledger.metadata import LedgerMetadata, Segment
from magnetar.ledger.metrics import samples
from magnetar.ledger.owned_tasks import OwnedTasks
from magnetar.ledger.placement import Placement, PlacementPolicy, PlacementRules
from magnetar.ledger.reader import LedgerReader
from magnetar.ledger.recover import recover as recover_ledger
from magnetar.ledger.registry import LedgerRegistry
from magnetar.ledger.replica_budget import ReplicaBudget
from magnetar.ledger.replica_marks import ReplicaMarks
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.ledger.supervision import Supervision
from magnetar.ledger.surroundings import Surroundings
from magnetar.ledger.underreplicated import UnderreplicatedLedgers
from magnetar.ledger.verification import LedgerReport, verify_ledger
from magnetar.ledger.writer import LedgerWriter
from magnetar.metadata.counters import IdAllocator
from magnetar.metadata.errors import StoreClosed, StoreUnavailable
from magnetar.metadata.store import MetadataStore
from magnetar.metrics.sample import Sample
from magnetar.protocol.bookie import BookieProvider, master_key

log = get_logger("magnetar.ledger")

NO_CUSTOM: Mapping[str, bytes] = {}


class LedgerClient:
    """Opens ledgers. One for a process; all its ledgers belong to its event loop."""

    def __init__(
        self,
        metadata: MetadataStore,
        bookies: BookieProvider,
        *,
        clock: Clock,
        random: random.Random,
        settings: LedgerClientSettings | None = None,
    ) -> None:
        settings = settings or LedgerClientSettings()
        self._ids = IdAllocator(metadata)
        tasks = OwnedTasks(log)
        health = BookieHealth(
            random.random,
            HealthRules(
                settings.quarantine_s,
                settings.quarantine_max_s,
                settings.quarantine_errors,
                settings.quarantine_interval_s,
                settings.quarantine_ratio,
            ),
        )
        budget = ReplicaBudget(settings.pending_bytes, settings.unacknowledged_bytes, settings.replica_lag_s)
        counts = Counts()
        rules = PlacementRules(
            PlacementPolicy(settings.placement_policy),
            settings.placement_strict,
            settings.placement_by_free_space,
            settings.placement_weight_max,
        )
        placement = Placement(random, health=health, rules=rules)
        self.racks = BookieRacks(metadata)
        self._surroundings = Surroundings(
            registry=LedgerRegistry(metadata, clock, random, settings),
            bookies=bookies,
            placement=placement,
            ensembles=Ensembles(placement, bookies, self.racks, counts, clock),
            clock=clock,
            dice=random,
            settings=settings,
            tasks=tasks,
            master_key=master_key(),
            health=health,
            budget=budget,
            marks=ReplicaMarks(UnderreplicatedLedgers(metadata), tasks, random),
            counts=counts,
            supervision=Supervision(bookies, budget, health, counts, clock, settings),
        )

    @property
    def surroundings(self) -> Surroundings:
        """What all its ledgers share: for those who look after ledgers that are nobody's at the moment."""
        return self._surroundings

    async def create(
        self,
        ensemble_size: int,
        write_quorum: int,
        ack_quorum: int,
        *,
        custom_metadata: Mapping[str, bytes] = NO_CUSTOM,
        above: int = -1,
        groups: BookieGroups = NO_GROUPS,
    ) -> LedgerWriter:
        """A new ledger, with an id greater than `above`. No entry is sent before its metadata are stored.

        Args:
            groups: what its bookies are chosen from, now and later.

        Raises:
            NotEnoughBookies, MetadataUnavailable
        """
        if not 1 <= ack_quorum <= write_quorum <= ensemble_size:
            raise ValueError(
                f"ensemble {ensemble_size}, write quorum {write_quorum}, ack quorum {ack_quorum}:"
                " expected ensemble >= write quorum >= ack quorum >= 1"
            )
        surroundings = self._surroundings
        while True:
            ensemble = await surroundings.ensembles.new(ensemble_size, write_quorum, groups)
            metadata = LedgerMetadata(
                ledger_id=await self._allocate_id(above),
                ensemble_size=ensemble_size,
                write_quorum=write_quorum,
                ack_quorum=ack_quorum,
                segments=(Segment(0, ensemble),),
                token=f"{surroundings.dice.getrandbits(128):032x}",
                created_ms=surroundings.clock.time_ms(),
                custom={**custom_metadata, **groups.custom()},
            )
            if await surroundings.registry.create(metadata):
                surroundings.counts.created += 1
                return LedgerWriter(metadata, surroundings)
            log.warning("ledger.id_taken", ledger_id=metadata.ledger_id)

    async def _allocate_id(self, above: int) -> int:
        """Ids are given out to processes in blocks: an id that is new may still be lower than an old one."""
        try:
            while True:
                ledger_id = await self._ids.allocate()
                if ledger_id > above:
                    return ledger_id
        except (StoreUnavailable, StoreClosed) as error:
            raise MetadataUnavailable("allocating a ledger id", str(error)) from error

    async def open(self, ledger_id: int, *, recover: bool) -> LedgerReader:
        """Open a ledger for reading.

        With `recover`, one that is not closed is taken from its writer: fenced, its tail replayed, closed.
        Without, it is read up to what its bookies know to be confirmed now.

        Raises:
            NoSuchLedger, RecoveryFailed, MetadataCorrupt, MetadataUnavailable
            ReadFailed: not to be recovered, and none of its bookies answers.
        """
        surroundings = self._surroundings
        metadata = await surroundings.registry.read(ledger_id)
        if metadata.closed:
            return LedgerReader(metadata, surroundings)
        if recover:
            metadata = await surroundings.tasks.shielded(recover_ledger(ledger_id, surroundings))
            return LedgerReader(metadata, surroundings)
        last_confirmed = await read_last_confirmed(metadata, surroundings)
        return LedgerReader(metadata, surroundings, last_confirmed=last_confirmed)

    async def recover(self, ledger_id: int) -> LedgerMetadata:
        """Bring a ledger to its end, whoever writes it: that writer is fenced. Returns its metadata, closed.

        Raises:
            NoSuchLedger, RecoveryFailed, MetadataCorrupt, MetadataUnavailable
        """
        return await self._surroundings.tasks.shielded(recover_ledger(ledger_id, self._surroundings))

    async def verify(self, ledger_id: int, *, background: bool = False) -> LedgerReport:
        """Read each entry from each bookie that should have it, and compare.

        Raises:
            NoSuchLedger, ReadFailed, MetadataCorrupt, MetadataUnavailable
        """
        return await verify_ledger(ledger_id, self._surroundings, background=background)

    async def delete(self, ledger_id: int) -> None:
        """Delete a ledger, if there is one. Its bookies drop its entries when they next collect garbage."""
        await self._surroundings.tasks.shielded(self._surroundings.registry.delete(ledger_id))

    async def metadata_of(self, ledger_id: int) -> LedgerMetadata:
        return await self._surroundings.registry.read(ledger_id)

    async def list(self) -> list[int]:
        """All ledgers there are."""
        return await self._surroundings.registry.list()

    def metrics(self) -> Iterator[Sample]:
        return samples(self._surroundings)

    async def room(self) -> None:
        """Return once appends are taken again, after one was refused with `TooManyPending`."""
        await self._surroundings.supervision.room()

    async def close(self) -> None:
        """Wait for what is under way. The bookies' connections belong to their provider."""
        self._surroundings.supervision.close()
        self.racks.close()
        self._surroundings.marks.close()
        await self._surroundings.tasks.drain()
