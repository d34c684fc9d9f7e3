"""Which bookies take the slots of those that are missing."""

from __future__ import annotations

from collections.abc import Collection

from magnetar.ledger.metadata import LedgerMetadata
from magnetar.ledger.surroundings import Surroundings


async def choose_targets(
    surroundings: Surroundings,
    metadata: LedgerMetadata,
    ensemble: tuple[str, ...],
    slots: Collection[int],
    *,
    excluding: Collection[str] = (),
    among: Collection[str] | None = None,
) -> dict[int, str]:
    """A bookie for as many of `slots` as possible, as the ledger's writer would have chosen; none is in `ensemble`.

    Args:
        excluding: bookies that are to be emptied.
        among: if not None, only these.
    """
    return await surroundings.ensembles.replacements(
        metadata, ensemble, slots, exclude=excluding, among=among
    )
