"""What a subscription has to do with users' filters: it waits for them, and shows them again what they postpone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from magnetar.broker.entry_filters import frames
from magnetar.broker.entry_filters.gate import FilterGate

if TYPE_CHECKING:
    from magnetar.broker.compaction.reading import CompactedReading, EntrySource
    from magnetar.broker.dispatch.candidate import Candidate
    from magnetar.broker.dispatch.dispatcher import Dispatcher
    from magnetar.broker.persistent_topic import PersistentTopic
    from magnetar.managed_ledger import Cursor, Position

POSTPONED_MAX: Final = 10_000
"""With so many entries postponed nothing further is read."""


class FilteredSubscription:
    """A part of `Subscription`."""

    topic: PersistentTopic
    cursor: Cursor
    compacted: CompactedReading | None
    dispatcher: Dispatcher | None
    closed: bool
    _generation: int
    _source: EntrySource

    entry_filters: FilterGate | None = None
    """Users' filters; None: none."""
    filtering = False
    """Whether what was read waits for such filters, or to be shown to them again."""
    _postponed = 0
    """Entries that such filters want to see again later."""

    if TYPE_CHECKING:  # What the rest of it does.

        def wake(self) -> None: ...
        def deliver_again(self, positions: Sequence[Position]) -> None: ...
        def _pass_over(self, dispatcher: Dispatcher, positions: Sequence[Position]) -> None: ...
        def _hand_out(
            self, dispatcher: Dispatcher, candidates: list[Candidate], *, replayed: bool
        ) -> None: ...

    def _follow_filters(self) -> None:
        names = self.topic.policies.entry_filters
        if names != (() if self.entry_filters is None else self.entry_filters.names):
            host = self.topic.context.entry_filters
            before = self.entry_filters
            self.entry_filters = None
            if names:
                self.entry_filters = FilterGate(host, names, self)  # type: ignore[arg-type]  # It is a Subscription.
            if before is not None:
                before.interrupt()  # Or whoever waits for filters that fail would never ask the new ones.

    async def _pass_filters(
        self, dispatcher: Dispatcher, candidates: list[Candidate], *, replayed: bool
    ) -> None:
        """Hand out what users' filters accept. What they postpone comes again after a while; where order matters,
        what lies behind it waits with it."""
        generation = self._generation
        while candidates:
            gate = self.entry_filters
            if gate is None:
                self._hand_out(dispatcher, candidates, replayed=replayed)
                return
            verdicts = await gate.judge([candidate.entry for candidate in candidates])
            if generation != self._generation or dispatcher is not self.dispatcher:
                if not replayed:
                    self._source.rewind()
                return
            if verdicts is None:
                continue  # Other filters hold by now.
            gone = [each.position for each in candidates if self._was_acknowledged(each.position)]
            kept: list[Candidate] = []
            if not dispatcher.individual and frames.RESCHEDULE in verdicts:
                first = verdicts.index(frames.RESCHEDULE)
                candidates, kept = candidates[:first], candidates[first:]
            judged = list(zip(candidates, verdicts, strict=False))
            accepted = [
                each for each, verdict in judged if verdict == frames.ACCEPT and each.position not in gone
            ]
            rejected = [each.position for each, verdict in judged if verdict == frames.REJECT]
            postponed = [each.position for each, verdict in judged if verdict == frames.RESCHEDULE]
            dispatcher.forget(gone)
            if rejected:
                self._pass_over(dispatcher, rejected)
            if postponed:
                self._postpone(postponed)
            if accepted:
                self._hand_out(dispatcher, accepted, replayed=replayed)
            candidates = kept
            if candidates:
                await gate.rest(self.topic.settings.entry_filter_reschedule_s)
                if generation != self._generation:
                    if not replayed:
                        self._source.rewind()
                    return

    def _was_acknowledged(self, position: Position) -> bool:
        """Whether it was skipped, or expired, while the filters were asked."""
        return self.compacted is None and self.cursor.is_acknowledged(position)

    def _postpone(self, positions: list[Position]) -> None:
        self._postponed += len(positions)
        asyncio.get_running_loop().call_later(
            self.topic.settings.entry_filter_reschedule_s, self._bring_up, positions, self._generation
        )

    def _bring_up(self, positions: list[Position], generation: int) -> None:
        self._postponed -= len(positions)
        if generation == self._generation and not self.closed:
            self.deliver_again(positions)
        else:
            self.wake()  # It may have waited for there to be fewer of them.
