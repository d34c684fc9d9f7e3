"""Finding bookies for ledgers: the shell around `placement.py`."""

from __future__ import annotations

from collections.abc import Collection

from magnetar.environment.clock import Clock
from magnetar.environment.logs import get_logger
from magnetar.ledger.bookie_racks import BookieRacks
from magnetar.ledger.counts import Counts
from magnetar.ledger.errors import MetadataCorrupt
from magnetar.ledger.groups import NO_GROUPS, BookieGroups
from magnetar.ledger.metadata import LedgerMetadata
from magnetar.ledger.placement import Choice, Placement
from magnetar.protocol.bookie import BookieProvider

log = get_logger("magnetar.ledger")

_WARN_S = 60.0


class Ensembles:
    """Asks where bookies are, has `Placement` choose, and says where that is worse than it should be."""

    def __init__(
        self, placement: Placement, bookies: BookieProvider, racks: BookieRacks, counts: Counts, clock: Clock
    ) -> None:
        self._placement = placement
        self._bookies = bookies
        self._racks = racks
        self._counts = counts
        self._clock = clock
        self._warned_at = float("-inf")

    async def new(self, size: int, write_quorum: int, groups: BookieGroups = NO_GROUPS) -> tuple[str, ...]:
        """An ensemble for a new ledger.

        Raises:
            NotEnoughBookies, MetadataUnavailable
        """
        writable = await self._bookies.writable()
        racks = await self._racks.places()
        choice = self._placement.new_ensemble(
            writable, size, write_quorum, self._clock.monotonic(), groups=groups, racks=racks
        )
        self._look_at(choice, choice.ensemble)
        return choice.ensemble

    async def replacements(
        self,
        metadata: LedgerMetadata,
        ensemble: tuple[str, ...],
        failed: Collection[int],
        *,
        exclude: Collection[str] = (),
        among: Collection[str] | None = None,
        desperate: bool = False,
    ) -> dict[int, str]:
        """Other bookies for as many of the slots `failed` of one of a ledger's ensembles as possible.

        Args:
            exclude: bookies that will not do.
            among: if not None, no others will.
            desperate: whether one in quarantine is better than none.

        Raises:
            MetadataUnavailable
        """
        if not failed:
            return {}
        readable = await self._bookies.readable()
        racks = await self._racks.places()
        choice = self._placement.replacements(
            {
                bookie: address
                for bookie, address in readable.items()
                if not address.read_only and (among is None or bookie in among)
            },
            ensemble,
            failed,
            self._clock.monotonic(),
            write_quorum=metadata.write_quorum,
            groups=self._groups_of(metadata),
            racks=racks,
            registered=readable,
            exclude=exclude,
            desperate=desperate,
        )
        self._look_at(choice, ensemble)
        return dict(choice.bookies)

    def _groups_of(self, metadata: LedgerMetadata) -> BookieGroups:
        try:
            return BookieGroups.of(metadata.ledger_id, metadata.custom)
        except MetadataCorrupt as error:
            log.warning("ledger.placement_unreadable", ledger_id=metadata.ledger_id, reason=str(error))
            return NO_GROUPS

    def _look_at(self, choice: Choice, ensemble: tuple[str, ...]) -> None:
        if not choice.shared_domains:
            return
        self._counts.shared_domains += 1
        now = self._clock.monotonic()
        if now >= self._warned_at + _WARN_S:
            self._warned_at = now
            log.warning(
                "ensemble.shares_failure_domain",
                ensemble=",".join(ensemble),
                pairs=choice.shared_domains,
                advice="run bookies on as many hosts as there are copies, or tell their domains apart",
            )
