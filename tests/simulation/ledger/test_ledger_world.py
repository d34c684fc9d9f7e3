"""A writer and those that recover after it, in worlds drawn from seeds; and the same worlds with faults planted,
which the invariants must find. One story again: `LedgerWorld(seed).run()`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from magnetar.ledger import quorum_read, recovery
from magnetar.ledger.coverage import covers
from magnetar.ledger.quorum_read import QuorumRead, Verdict
from magnetar.ledger.recovery import LedgerRecovery
from magnetar.ledger.write_pipeline import PendingAdd, WritePipeline
from magnetar.simulation.ledger_world import InvariantBroken, LedgerWorld, Outcome

SEEDS = 320
SEEDS_TO_FIND = 400


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """A world full of failures has much to say."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_nothing_acknowledged_is_lost_whatever_fails() -> None:
    outcomes = [LedgerWorld(seed).run() for seed in range(SEEDS)]
    # The stories must be worth telling: not all quiet, not all dead.
    assert sum(outcome.acked for outcome in outcomes) > 5 * SEEDS
    assert sum(outcome.recoveries > 0 for outcome in outcomes) > SEEDS // 2
    assert sum(outcome.ensemble_changes > 0 for outcome in outcomes) > SEEDS // 10
    assert sum(outcome.last_entry + 1 > outcome.acked for outcome in outcomes) > SEEDS // 10
    assert sum(outcome.fenced for outcome in outcomes) < SEEDS


def test_a_seed_tells_the_same_story_twice() -> None:
    def told(seed: int) -> Outcome:
        return LedgerWorld(seed).run()

    assert [told(seed) for seed in range(10)] == [told(seed) for seed in range(10)]


def finds_it() -> str:
    """The first invariant that breaks.

    Seeds are tried in order, so a planted fault costs only as many stories as it takes to show.
    """
    for seed in range(SEEDS_TO_FIND):
        try:
            LedgerWorld(seed).run()
        except InvariantBroken as broken:
            return str(broken)
    pytest.fail(f"{SEEDS_TO_FIND} stories did not show the planted fault")


def test_fencing_one_bookie_too_few_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        recovery, "covers", lambda size, write, ack, known: covers(size, write, ack + 1, known)
    )
    assert "(I5)" in finds_it()


def test_acknowledging_one_replica_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    correct = WritePipeline.take_confirmed

    def early(self: WritePipeline[object]) -> list[PendingAdd[object]]:
        quorum, self._ack_quorum = self._ack_quorum, max(1, self._ack_quorum - 1)
        try:
            return correct(self)
        finally:
            self._ack_quorum = quorum

    monkeypatch.setattr(WritePipeline, "take_confirmed", early)
    assert finds_it()


def test_confirming_while_the_ensemble_changes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traps T4 and T5: the new segment begins below entries that only the old ensemble has."""
    take_confirmed, add_succeeded = WritePipeline.take_confirmed, WritePipeline.add_succeeded

    def take(self: WritePipeline[object]) -> list[PendingAdd[object]]:
        changing, self.changing = self.changing, False
        try:
            return take_confirmed(self)
        finally:
            self.changing = changing

    def succeeded(self: WritePipeline[object], add: PendingAdd[object], slot: int, bookie: str) -> bool:
        changing, self.changing = self.changing, False
        try:
            return add_succeeded(self, add, slot, bookie)
        finally:
            self.changing = changing

    monkeypatch.setattr(WritePipeline, "take_confirmed", take)
    monkeypatch.setattr(WritePipeline, "add_succeeded", succeeded)
    assert finds_it()


def test_acks_of_a_replaced_bookie_that_still_count_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    correct = WritePipeline.end_change

    def forgetful(self: WritePipeline[object], replacements: dict[int, str]) -> object:
        before = [(add, add.acked, add.acks) for add in self.pending]
        resent = correct(self, replacements)
        for add, acked, acks in before:
            add.acked, add.acks = acked, acks
        return resent

    monkeypatch.setattr(WritePipeline, "end_change", forgetful)
    assert finds_it()


def test_truncating_on_an_unknown_answer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    correct = vars(QuorumRead)["verdict"]

    def rash(self: QuorumRead) -> Verdict | None:
        verdict: Verdict | None = correct.fget(self)
        return Verdict.ABSENT if verdict is Verdict.UNKNOWN else verdict

    monkeypatch.setattr(QuorumRead, "verdict", property(rash))
    assert finds_it()


def test_truncating_on_a_single_denial_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quorum_read, "negatives_needed", lambda write_quorum, ack_quorum: 1)
    assert finds_it()


def test_closing_at_the_last_known_confirmation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was acknowledged after the last entry that tells of it would be cut off."""
    correct = LedgerRecovery._begin_reading

    def hasty(self: LedgerRecovery) -> list[recovery.Request]:
        correct(self)
        self._phase = recovery._Phase.WRITING
        self._reads.clear()
        return self._written_all()

    monkeypatch.setattr(LedgerRecovery, "_begin_reading", hasty)
    assert finds_it()
