"""What decides in autorecovery, without bookies or time of its own."""

from __future__ import annotations

from magnetar.autorecovery.entry_ranges import written
from magnetar.autorecovery.extents import Extent, extents, names_any
from magnetar.autorecovery.lost_bookies import LostBookies
from magnetar.autorecovery.repair_schedule import RepairSchedule
from magnetar.autorecovery.throttle import Throttle
from magnetar.autorecovery.verdicts import Copy, Holding, judge, shared_domains
from magnetar.ledger.fragment import Fragment
from magnetar.ledger.metadata import LedgerMetadata, LedgerState, Segment

ABC = ("a", "b", "c")
ALL = Holding(((0, 9),))


def metadata(*segments: tuple[int, tuple[str, ...]], last_entry: int | None = None) -> LedgerMetadata:
    return LedgerMetadata(
        1,
        3,
        2,
        2,
        tuple(Segment(first, ensemble) for first, ensemble in segments),
        "token",
        0,
        state=LedgerState.OPEN if last_entry is None else LedgerState.CLOSED,
        last_entry=-1 if last_entry is None else last_entry,
    )


class TestExtents:
    def test_a_closed_ledger_ends_where_it_says(self) -> None:
        first, second = extents(metadata((0, ABC), (10, ("a", "b", "d")), last_entry=12))
        assert (first.last_entry, second.last_entry) == (9, 12)
        assert first.entries() == ((0, 9),)

    def test_an_empty_ledger_has_a_fragment_without_entries(self) -> None:
        (only,) = extents(metadata((0, ABC), last_entry=-1))
        assert only.closed
        assert only.entries() == ()
        assert list(only.stripe(0)) == []

    def test_the_fragment_before_the_open_one_is_open_until_its_end_is_confirmed(self) -> None:
        """T14: a reader that knows less than the writer would take the fragment for shorter than it is."""
        ledger = metadata((0, ABC), (5, ABC), (10, ABC))
        assert [each.last_entry for each in extents(ledger, 8)] == [4, None, None]
        assert [each.last_entry for each in extents(ledger, 9)] == [4, 9, None]

    def test_names(self) -> None:
        ledger = metadata((0, ABC), (5, ("a", "b", "d")))
        assert names_any(ledger, {"d"})
        assert not names_any(ledger, {"e"})


def extent(last_entry: int | None = 9) -> Extent:
    return Extent(Fragment(0, ABC, 2, 2), last_entry)


class TestVerdicts:
    def test_all_is_well(self) -> None:
        verdict = judge(extent(), readable=ABC, leaving=(), holdings=dict.fromkeys(ABC, ALL))
        assert verdict.well

    def test_a_bookie_that_is_away_is_gone_and_its_entries_are_on_others(self) -> None:
        verdict = judge(extent(), readable=("a", "c"), leaving=(), holdings={"a": ALL, "c": ALL})
        assert [(copy.bookie, copy.state) for copy in verdict.bad] == [("b", Copy.GONE)]
        assert verdict.lost == ()

    def test_two_of_three_gone_loses_what_only_they_held(self) -> None:
        verdict = judge(extent(), readable=("c",), leaving=(), holdings={"c": ALL})
        # Entries 0, 3, 6, 9 are on a and b alone.
        assert verdict.lost == ((0, 0), (3, 3), (6, 6), (9, 9))

    def test_one_that_does_not_say_makes_nothing_lost(self) -> None:
        verdict = judge(
            extent(), readable=("b", "c"), leaving=(), holdings={"c": ALL, "b": Holding(known=False)}
        )
        assert verdict.lost == ()
        assert [copy.bookie for copy in verdict.doubtful] == ["b"]

    def test_a_bookie_to_be_emptied_is_replaced_and_still_read(self) -> None:
        verdict = judge(extent(), readable=ABC, leaving=("b",), holdings=dict.fromkeys(ABC, ALL))
        assert [(copy.bookie, copy.state) for copy in verdict.bad] == [("b", Copy.GONE)]
        alone = judge(extent(), readable=("b",), leaving=("b",), holdings={"b": ALL})
        # 2, 5 and 8 are on c and a.
        assert alone.lost == ((2, 2), (5, 5), (8, 8))

    def test_missing_and_damaged_entries_are_to_be_copied_again(self) -> None:
        holdings = {"a": Holding(((0, 4),)), "b": Holding(((0, 9),), damaged=((3, 3),)), "c": ALL}
        verdict = judge(extent(), readable=ABC, leaving=(), holdings=holdings)
        assert {copy.bookie: copy.missing for copy in verdict.incomplete} == {
            "a": ((5, 6), (8, 9)),
            "b": ((3, 3),),
        }
        assert verdict.lost == ()

    def test_the_only_copy_damaged_is_lost(self) -> None:
        holdings = {"b": Holding(((0, 9),), damaged=((3, 3),)), "c": ALL}
        verdict = judge(extent(), readable=("b", "c"), leaving=(), holdings=holdings)
        assert verdict.lost == ((3, 3),)

    def test_of_an_open_fragment_only_absence_is_told(self) -> None:
        verdict = judge(extent(None), readable=("a", "b"), leaving=(), holdings={})
        assert [(copy.bookie, copy.state) for copy in verdict.bad] == [("c", Copy.GONE)]

    def test_an_absent_bookie_must_go_even_where_it_holds_nothing(self) -> None:
        verdict = judge(
            extent(-1), readable=("a", "b"), leaving=(), holdings={"a": Holding(), "b": Holding()}
        )
        assert [copy.bookie for copy in verdict.gone] == ["c"]
        assert verdict.lost == ()

    def test_shared_domains(self) -> None:
        assert shared_domains(extent(), {"a": "x", "b": "x", "c": "y"}) == (("a", "b"),)
        assert shared_domains(extent(), {"a": "x", "b": "z", "c": "y"}) == ()


class TestLostBookies:
    def test_one_that_is_away_has_time_to_return(self) -> None:
        lost = LostBookies(delay_s=60)
        assert lost.seen("abc", "ab", 0).left == ("c",)
        assert lost.due(59) == ()
        assert lost.next_due() == 60
        assert lost.due(60) == ("c",)
        lost.marked(["c"])
        assert lost.due(61) == ()
        assert lost.lost(61) == ("c",)

    def test_its_return_cancels(self) -> None:
        lost = LostBookies(delay_s=60)
        lost.seen("abc", "ab", 0)
        assert lost.seen("abc", "abc", 30).returned == ("c",)
        assert lost.due(60) == ()
        assert lost.next_due() is None

    def test_the_second_makes_both_due_at_once(self) -> None:
        lost = LostBookies(delay_s=60)
        lost.seen("abc", "ab", 0)
        lost.seen("abc", "a", 10)
        assert lost.due(10) == ("b", "c")

    def test_a_second_after_the_first_was_marked_is_due_at_once_too(self) -> None:
        lost = LostBookies(delay_s=60)
        lost.seen("abc", "ab", 0)
        lost.marked(lost.due(60))
        lost.seen("abc", "a", 100)
        assert lost.due(100) == ("b",)

    def test_without_delay_nothing_is_waited_for(self) -> None:
        lost = LostBookies(delay_s=0)
        lost.seen("abc", "ab", 5)
        assert lost.due(5) == ("c",)

    def test_a_delay_changed_meanwhile_counts(self) -> None:
        lost = LostBookies(delay_s=60)
        lost.seen("abc", "ab", 0)
        lost.delay_s = 10
        assert lost.due(10) == ("c",)

    def test_one_that_comes_back_and_leaves_again_is_away_anew(self) -> None:
        lost = LostBookies(delay_s=60)
        lost.seen("abc", "ab", 0)
        lost.marked(lost.due(60))
        lost.seen("abc", "abc", 70)
        assert lost.lost(70) == ()
        lost.seen("abc", "ab", 80)
        assert lost.due(139) == ()
        assert lost.due(140) == ("c",)

    def test_one_whose_cookie_is_removed_is_no_longer_away(self) -> None:
        lost = LostBookies(delay_s=60)
        lost.seen("abc", "ab", 0)
        assert lost.seen("ab", "ab", 1).returned == ()
        assert not lost.away

    def test_when_all_are_away_nothing_is_marked(self) -> None:
        """A cut from the metadata store, or a site without power: they will be back, or no one can repair."""
        lost = LostBookies(delay_s=0)
        lost.seen("abc", "", 0)
        assert lost.due(100) == ()
        lost.seen("abc", "a", 100)
        assert lost.due(100) == ("b", "c")


class TestRepairSchedule:
    def schedule(self) -> RepairSchedule:
        return RepairSchedule(retry_s=5, retry_max_s=60, grace_s=30)

    def test_pauses_double_up_to_a_limit(self) -> None:
        schedule = self.schedule()
        assert [schedule.failed(1, 0) for _ in range(6)] == [5, 10, 20, 40, 60, 60]
        assert schedule.ready([1, 2], 59) == [2]
        assert schedule.next_turn() == 60
        assert schedule.ready([1, 2], 60) == [1, 2]
        schedule.succeeded(1)
        assert schedule.failed(1, 0) == 5

    def test_what_is_no_longer_marked_is_forgotten(self) -> None:
        schedule = self.schedule()
        schedule.failed(1, 0)
        schedule.grace_ends(1, 0)
        assert schedule.ready([], 0) == []
        assert schedule.next_turn() is None
        assert schedule.ready([1], 0) == [1]
        assert schedule.grace_ends(1, 100) == 130

    def test_a_writers_grace_counts_from_the_first_look(self) -> None:
        schedule = self.schedule()
        assert schedule.grace_ends(1, 10) == 40
        assert schedule.grace_ends(1, 35) == 40

    def test_one_that_another_has_comes_again_without_counting_as_a_failure(self) -> None:
        schedule = self.schedule()
        schedule.taken(1, 0)
        assert schedule.ready([1], 4) == []
        assert schedule.failed(1, 5) == 5


class TestThrottle:
    def test_bytes_take_their_time(self) -> None:
        throttle = Throttle(100)
        assert throttle.take(50, 0) == 0.5
        assert throttle.take(50, 0.5) == 0.5
        assert throttle.take(50, 0.5) == 1.0
        assert throttle.take(50, 10) == 0.5, "idle time is not saved up"

    def test_without_limit(self) -> None:
        assert Throttle(0).take(1 << 40, 0) == 0


def test_ranges_for_people() -> None:
    assert written(((0, 0), (3, 9))) == "0, 3-9"
    assert written(((0, 0), (3, 9)), most=1) == "0, and 1 runs more"
