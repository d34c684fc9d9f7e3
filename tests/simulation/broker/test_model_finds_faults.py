"""Each deliberate fault in dispatch, acknowledgement and deduplication is noticed, on a seed that passes without it.

New seeds: `python -m tests.simulation.broker.stories subscription --fault NAME`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from magnetar.broker.dispatch.shared import SharedDispatcher
from tests.simulation.broker.faults import FAULTS, faulty
from tests.simulation.broker.lives import LIVES
from tests.simulation.broker.stories import first_wrong, shrink, tell

SEEDS = {
    "forgets_to_rewind": 8,
    "counts_a_departure": 69,
    "gives_keys_to_anyone": 279,
    "overtakes_what_is_held": 223,
    "sends_without_permits": 1,
    "counts_permits_by_entry": 1,
    "loses_what_was_given_back": 53,
    "sleeps_through_permits": 0,
    "ignores_priority": 9,
    "elects_the_oldest": 2,
    "hands_over_at_once": 30,
    "never_lifts_the_limit": 21,
    "scatters_chunks": 17,
    "pinned_chunks_take_the_room": 313,
    "delivers_before_its_time": 51,
    "keeps_the_old_epoch": 34,
    "takes_a_part_for_the_whole": 9,
    "replaces_instead_of_merging": 76,
    "acknowledges_the_last_batch_whole": 168,
    "gives_receipts_too_soon": 127,
    "forgets_who_has_what": 11,
    "judges_a_batch_by_its_lowest_id": 11,
    "stores_a_straddling_batch_whole": 11,
    "stores_what_may_be_under_way": 14,
    "answers_what_is_under_way_as_stored": 0,
    "moves_on_without_saving": 0,
    "replays_the_first_id_only": 17,
    "replays_half_a_message": 31,
    "does_not_replay": 5,
    "takes_a_batch_for_its_one_id": 7,
}
DRIFT = 60
"""A change of the code draws a seed's story anew: then one of the next seeds will do."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Brokers that die have much to say."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_a_fault_is_noticed(name: str) -> None:
    begin, first = LIVES[FAULTS[name].life], SEEDS[name]
    with faulty(name):
        told = first_wrong(begin, range(first, first + DRIFT))
    assert told is not None, f"nobody noticed: {FAULTS[name].what}"
    assert not tell(begin, told.seed).wrong, "the fault alone is to blame"


def test_a_story_is_cut_down_to_what_matters() -> None:
    begin = LIVES["subscription"]
    with faulty("sends_without_permits"):
        told = tell(begin, SEEDS["sends_without_permits"])
        short = shrink(begin, told, attempts=60)
    assert short.wrong
    assert len(short.steps) < len(told.steps)
    assert "without a permit" in str(short)


def test_a_fault_ends_with_its_context() -> None:
    remove = SharedDispatcher.remove
    with faulty("counts_a_departure"):
        assert SharedDispatcher.remove is not remove
    assert SharedDispatcher.remove is remove
