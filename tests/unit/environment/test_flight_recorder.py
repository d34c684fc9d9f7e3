"""The last facts are there when something goes wrong, also those that were not worth a line in the log."""

from __future__ import annotations

import io
import signal
import subprocess
import sys

import pytest

from magnetar.environment import flight_recorder
from magnetar.environment.logs import get_logger


@pytest.fixture(autouse=True)
def _forget() -> None:
    flight_recorder.clear()


def dumped(last: int = flight_recorder.CAPACITY) -> str:
    out = io.StringIO()
    flight_recorder.dump(out, last=last)
    return out.getvalue()


def test_a_fact_is_kept_although_its_level_is_off() -> None:
    get_logger("magnetar.test").bind(topic="t").debug("entry.read", position="3:4")
    assert "magnetar.test entry.read topic='t' position='3:4'" in dumped()


def test_only_the_last_facts_are_kept() -> None:
    log = get_logger("magnetar.test")
    for number in range(flight_recorder.CAPACITY + 10):
        log.debug("counted", number=number)
    text = dumped()
    assert "number=9\n" not in text
    assert f"number={flight_recorder.CAPACITY + 9}" in text
    assert dumped(last=2).count("counted") == 2


@pytest.mark.parametrize("end", ["raise RuntimeError('lost')", f"signal.raise_signal({int(signal.SIGUSR2)})"])
def test_a_process_tells_them_when_it_fails_or_is_asked(end: str) -> None:
    program = (
        "import signal; from magnetar.environment.logs import configure, get_logger; configure('ERROR'); "
        f"get_logger('magnetar.test').debug('before.the_end', entry=7); {end}"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert "before.the_end entry=7" in done.stderr
