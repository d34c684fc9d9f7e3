"""The write pipeline against a naive model, over random answers and changes of the ensemble."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from magnetar.ledger.fragment import Fragment
from magnetar.ledger.write_pipeline import AddOutcome, PendingAdd, WritePipeline
from magnetar.protocol.bookie import BookieStatus

SIZE, WRITE, ACK = 4, 3, 2


class PipelineMachine(RuleBasedStateMachine):
    """The model keeps, for each entry, which bookie in which slot has it, and asks the rule of the paper."""

    def __init__(self) -> None:
        super().__init__()
        self.pipeline: WritePipeline[int] = WritePipeline(
            Fragment(0, tuple(f"b{slot}" for slot in range(SIZE)), WRITE, ACK)
        )
        self.adds: list[PendingAdd[int]] = []
        self.holders: list[set[tuple[int, str]]] = []
        self.on_the_way: list[tuple[int, int, str]] = []
        self.confirmed: list[int] = []
        self.named = [f"b{slot}" for slot in range(SIZE)]
        self.spares = 0
        self.change_begins_at = -1

    def send(self, entry_id: int, slot: int) -> None:
        self.on_the_way.append((entry_id, slot, self.pipeline.ensemble[slot]))

    def confirm(self) -> None:
        self.confirmed += [add.entry_id for add in self.pipeline.take_confirmed()]

    @rule()
    def append(self) -> None:
        add = self.pipeline.push(10, len(self.adds))
        assert add.entry_id == len(self.adds)
        self.adds.append(add)
        self.holders.append(set())
        for slot in self.pipeline.write_slots(add.entry_id):
            self.send(add.entry_id, slot)

    @precondition(lambda self: self.on_the_way)
    @rule(data=st.data(), ok=st.booleans())
    def answer(self, data: st.DataObject, ok: bool) -> None:
        entry_id, slot, bookie = self.on_the_way.pop(
            data.draw(st.integers(0, len(self.on_the_way) - 1), label="which")
        )
        add = self.adds[entry_id]
        if ok:
            self.holders[entry_id].add((slot, bookie))
            if self.pipeline.add_succeeded(add, slot, bookie):
                self.confirm()
            return
        outcome = self.pipeline.add_failed(add, slot, bookie, BookieStatus.TIMEOUT)
        if self.named[slot] == bookie:
            assert outcome is AddOutcome.REPLACE
            assert self.pipeline.failed[slot] == bookie
        else:
            assert outcome is AddOutcome.LATE

    @precondition(lambda self: not self.pipeline.changing and self.pipeline.failed)
    @rule()
    def begin_change(self) -> None:
        self.change_begins_at = self.pipeline.begin_change()
        assert self.change_begins_at == len(self.confirmed)

    @precondition(lambda self: self.pipeline.changing)
    @rule(replace=st.booleans())
    def end_change(self, replace: bool) -> None:
        assert self.pipeline.last_confirmed + 1 == self.change_begins_at, "the LAC moved during the change"
        replacements = {}
        if replace:
            for slot in self.pipeline.failed:
                self.spares += 1
                replacements[slot] = self.named[slot] = f"spare{self.spares}"
        for add, slot in self.pipeline.end_change(replacements):
            assert slot in replacements
            self.send(add.entry_id, slot)
        if not replace:
            self.pipeline.failed.clear()
        self.confirm()

    @invariant()
    def confirmations_are_in_order_and_lie_where_the_metadata_say(self) -> None:
        assert self.confirmed == list(range(len(self.confirmed)))
        assert self.pipeline.last_confirmed == len(self.confirmed) - 1
        assert self.pipeline.confirmed_length == 10 * len(self.confirmed)

    @invariant()
    def the_next_entry_is_confirmed_exactly_if_its_quorum_is_there(self) -> None:
        following = len(self.confirmed)
        if following == len(self.adds):
            return
        quorum = {(slot, bookie) for slot, bookie in self.holders[following] if self.named[slot] == bookie}
        if not self.pipeline.changing:
            assert len(quorum) < ACK, "an entry has its quorum and was not confirmed"


PipelineMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestPipeline = PipelineMachine.TestCase
