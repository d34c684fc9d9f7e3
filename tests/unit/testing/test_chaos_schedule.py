"""A seed is a schedule: the same every time, dense enough, and never two faults for one process."""

from __future__ import annotations

import pytest

from magnetar.testing.chaos_schedule import AT_ONCE_MAX, Fault, Kind, Targets, draw, overlapping_share

TARGETS = Targets(
    keepers=("zookeeper-1", "zookeeper-2", "zookeeper-3"),
    bookies=("bookie-0", "bookie-1", "bookie-2", "bookie-3"),
    brokers=("broker-0", "broker-1"),
    others=("autorecovery-0",),
    small_disks=("bookie-3",),
)


@pytest.mark.parametrize("seed", range(50))
def test_a_schedule(seed: int) -> None:
    faults = draw(TARGETS, 600, seed)
    assert faults == draw(TARGETS, 600, seed)
    assert len(faults) > 60
    assert overlapping_share(faults) >= 0.3
    for number, fault in enumerate(faults):
        active = [each for each in faults[:number] if each.until_s > fault.at_s]
        assert len(active) < AT_ONCE_MAX
        assert not {name for each in active for name in each.targets} & set(fault.targets)


def test_every_kind_is_drawn_and_every_process_hit() -> None:
    faults = [fault for seed in range(5) for fault in draw(TARGETS, 600, seed)]
    assert {fault.kind for fault in faults} == set(Kind)
    assert {name for fault in faults for name in fault.targets} == set(TARGETS.everybody)


def test_without_a_small_disk_none_is_filled() -> None:
    targets = Targets(TARGETS.keepers, TARGETS.bookies, TARGETS.brokers)
    assert all(fault.kind is not Kind.FULL_DISK for fault in draw(targets, 2000, 1))


def test_overlapping() -> None:
    def fault(at: float, lasts: float) -> Fault:
        return Fault(at, lasts, Kind.KILL, ("a",))

    assert overlapping_share([fault(0, 1), fault(2, 1)]) == 0
    assert overlapping_share([fault(0, 3), fault(2, 1), fault(9, 1), fault(20, 1)]) == 0.5
