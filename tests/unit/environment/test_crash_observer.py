"""A simulation hears of every crash point, and may have its process die there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from magnetar.environment import crash
from magnetar.environment.crash import crash_point


@pytest.fixture(autouse=True)
def _nobody_watches_afterwards() -> Iterator[None]:
    yield
    crash.observe(None)


def test_a_watcher_is_told_of_each_passage_by_name() -> None:
    seen: list[str] = []
    crash.observe(seen.append)
    crash_point("room.one")
    crash_point("room.two")
    crash.observe(None)
    crash_point("room.three")
    assert seen == ["room.one", "room.two"]


def test_what_a_watcher_raises_is_raised_at_the_crash_point() -> None:
    class Died(BaseException):
        pass

    def die(name: str) -> None:
        raise Died(name)

    crash.observe(die)
    with pytest.raises(Died, match=r"room\.one"):
        crash_point("room.one")
