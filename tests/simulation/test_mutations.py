"""The simulator can find bugs: each deliberate mistake in the protocol is noticed by an invariant that names it, on a seed
that passes without the mistake. New seeds: `python -m magnetar.simulation --mutation NAME --seeds 2000`."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from magnetar.simulation.mutations import MUTATIONS, mutated
from magnetar.simulation.worlds import tell

SEEDS = {
    "confirmed_past_a_hole": 3,
    "confirmed_one_short": 3,
    "confirmed_while_the_ensemble_changes": 20,
    "ensemble_change_not_stored": 14,
    "changes_without_compare_and_set": 14,
    "truncated_on_an_unknown_answer": 1,
    "cursor_mark_goes_back": 0,
    "trimmed_past_the_slowest_cursor": 2,
    "deposed_owner_writes_its_record": 1,
    "acknowledged_before_fsync": 1,
    "mark_ahead_of_data": 11,
    "journal_removed_too_soon": 0,
    "collected_on_a_partial_listing": 2,
    "copy_named_before_it_is_durable": 1,
    "ledgers_deleted_before_the_list": 8,
    "fence_not_persisted": 1,
    "fence_answered_before_it_is_durable": 1,
    "absent_by_plain_majority": 8,
    "fences_not_replayed": 1,
    "replaced_acknowledgements_count": 155,
    "late_acknowledgements_count": 177,
    "covered_one_too_few": 210,
    "tail_not_written_back": 1019,
    "recovery_reads_without_the_fence": 416,
    "empty_disk_believed": 1,
    "orphans_not_looked_for": 2,
}

DRIFT = {"storage": 8, "ledger": 400, "thin": 400, "race": 400, "log": 50}
"""A change of the code draws a seed's story anew: then one of the next seeds will do."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """A world full of failures has much to say."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_a_mistake_in_the_protocol_is_called_by_its_name(name: str) -> None:
    mutation, first = MUTATIONS[name], SEEDS[name]
    seen = []
    for seed in range(first, first + DRIFT[mutation.world]):
        broken = tell(mutation.world, seed, mutation=name)
        if broken.broken:
            seen.append((broken.seed, broken.broken, broken.what))
        if broken.broken in mutation.caught_by:
            assert tell(mutation.world, seed).passed
            return
    pytest.fail(f"not called by its name: {seen}")


def test_a_mistake_ends_with_its_context() -> None:
    from magnetar.ledger.quorum_read import QuorumRead

    answered = QuorumRead.answered
    with mutated("truncated_on_an_unknown_answer"):
        assert QuorumRead.answered is not answered
    assert QuorumRead.answered is answered
