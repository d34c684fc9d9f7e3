"""Guarantees against a real broker, with user process, host and broker killed at named points.

What comes out is read by the official client and compared with a plain computation.
"""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.integration

MESSAGES = 2000
NUMBERS = """
from pulsar import Function

class Numbers(Function):
    def process(self, input, context):
        if input % 97 == 5:
            raise ValueError(f"{input} is of a bad kind")
        if input % 11 == 3:
            return None
        return f"n {input}"
"""
EXPECTED = [n for n in range(MESSAGES) if n % 97 != 5 and n % 11 != 3]
EXPECTED_DEAD = [n for n in range(MESSAGES) if n % 97 == 5]


def config(name: str, guarantee: str, **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "className": "numbers.Numbers",
        "inputs": [f"{name}-in"],
        "output": f"{name}-out",
        "deadLetterTopic": f"{name}-dead",
        "maxMessageRetries": 0,
        "processingGuarantees": guarantee,
        "subscriptionPosition": "Earliest",
        **changes,
    }


def make_topics(platform: Any, name: str, *, deduplicated: bool) -> None:
    platform.make_topic(f"{name}-in")
    platform.make_topic(f"{name}-out", deduplicated=deduplicated)
    platform.make_topic(f"{name}-dead", deduplicated=deduplicated)


def results(platform: Any, topic: str) -> list[int]:
    return [int(message.data().split()[1]) for message in platform.read(topic)]


def dead(platform: Any, topic: str) -> list[int]:
    return [int(message.data()) for message in platform.read(topic)]


def done(platform: Any, name: str) -> bool:
    return bool(platform.backlog(f"{name}-in", f"public/default/{name}") == 0)


CRASHES = (
    "instance.after_run:2",
    "instance.before_publish:2",
    "instance.after_publish:1",
    "instance.after_publish:3",
    "instance.before_acknowledge:2",
    "instance.after_acknowledge:2",
    "instance.before_dead_letter:2",
    "instance.after_dead_letter:2",
    "instance.after_dead_letter:3",
)


def test_effectively_once_with_host_user_process_and_broker_killed(
    platform: Any, run_host: Callable[..., Any], until: Callable[..., Any], tmp_path: Path
) -> None:
    """Each named crash point in turn, then the others: no gap, no repeat, in order; and the kills did bite."""
    name = "exact"
    make_topics(platform, name, deduplicated=True)
    function = config(name, "EFFECTIVELY_ONCE")
    platform.publish(f"{name}-in", [b"%d" % n for n in range(MESSAGES)], batch=100)
    for crash_point in CRASHES:
        host = run_host("function", function, NUMBERS, crash_point=crash_point)
        assert host.died() == -signal.SIGKILL
    host = run_host("function", function, NUMBERS)
    host.said("ready")
    killed = until(host.user_processes, "there is a user process")
    killed[0].kill()
    platform.kill_and_restart()
    until(lambda: done(platform, name), "all inputs are acknowledged")
    assert results(platform, f"{name}-out") == EXPECTED
    assert dead(platform, f"{name}-dead") == EXPECTED_DEAD
    repeated = sum(
        int(n) for n in re.findall(r"input\.repeated .*committed=(\d+)", (tmp_path / "host.log").read_text())
    )
    assert repeated >= 50, "hardly anything was delivered again: the kills proved nothing"


def test_results_of_effectively_once_carry_their_input(
    platform: Any, run_host: Callable[..., Any], until: Callable[..., Any]
) -> None:
    name = "carry"
    make_topics(platform, name, deduplicated=True)
    platform.publish(f"{name}-in", [b"%d" % n for n in range(20)], key="k")
    run_host("function", config(name, "EFFECTIVELY_ONCE"), NUMBERS).said("ready")
    until(lambda: done(platform, name), "all inputs are acknowledged")
    out = platform.read(f"{name}-out")
    assert [message.partition_key() for message in out] == ["k"] * 17
    assert out[0].properties()["__pfn_input_topic__"] == f"persistent://public/default/{name}-in"
    (letter,) = platform.read(f"{name}-dead")
    assert letter.data() == b"5"
    assert letter.partition_key() == "k"
    assert letter.properties()["exception"] == "ValueError: 5 is of a bad kind"
    assert "in process" in letter.properties()["traceback"]
    assert letter.properties()["REAL_TOPIC"].endswith(f"{name}-in")


@pytest.mark.parametrize(
    "crash_point", ["instance.after_publish:2", "instance.before_publish:2", "instance.after_run:2"]
)
def test_at_least_once_loses_nothing(
    crash_point: str, platform: Any, run_host: Callable[..., Any], until: Callable[..., Any]
) -> None:
    name = "least-" + re.sub(r"\W", "-", crash_point)
    make_topics(platform, name, deduplicated=False)
    function = config(name, "ATLEAST_ONCE")
    platform.publish(f"{name}-in", [b"%d" % n for n in range(MESSAGES)], batch=50)
    assert run_host("function", function, NUMBERS, crash_point=crash_point).died() == -signal.SIGKILL
    host = run_host("function", function, NUMBERS)
    host.said("ready")
    until(host.user_processes, "there is a user process")[0].kill()
    until(lambda: done(platform, name), "all inputs are acknowledged")
    assert set(results(platform, f"{name}-out")) == set(EXPECTED)
    assert set(dead(platform, f"{name}-dead")) == set(EXPECTED_DEAD)


def test_at_most_once_repeats_nothing(
    platform: Any, run_host: Callable[..., Any], until: Callable[..., Any]
) -> None:
    name = "most"
    make_topics(platform, name, deduplicated=False)
    function = config(name, "ATMOST_ONCE")
    platform.publish(f"{name}-in", [b"%d" % n for n in range(MESSAGES)], batch=50)
    host = run_host("function", function, NUMBERS)
    host.said("ready")
    until(host.user_processes, "there is a user process")[0].kill()
    until(lambda: done(platform, name), "all inputs are acknowledged")
    host.stop()
    assert max(Counter(results(platform, f"{name}-out")).values(), default=0) <= 1


ACKNOWLEDGES_FIRST = """
from magnetar.instance import delivery, input_session
from magnetar.instance.__main__ import main

class AcknowledgesFirst(delivery.Delivery[delivery.P]):
    def received(self, arrival):
        return [delivery.Acknowledge(arrival.position), *super().received(arrival)]

from magnetar.instance import function_instance
function_instance.Delivery = AcknowledgesFirst
main()
"""
WITHOUT_BATCH_INDEX = """
import dataclasses
from magnetar.instance import output_topic
from magnetar.instance.__main__ import main

honest = output_topic.SequencedOutput.publish

class Flat(int):
    def __add__(self, ordinal):
        return int(self)

def publish(self, output, first_index, done):
    honest(self, output, Flat(first_index), done)

output_topic.SequencedOutput.publish = publish
main()
"""


@pytest.mark.parametrize(
    ("program", "crash_point"),
    [(ACKNOWLEDGES_FIRST, "instance.before_publish:12"), (WITHOUT_BATCH_INDEX, "instance.after_publish:1")],
    ids=["acknowledges before it publishes", "sequence ids without batch index"],
)
def test_a_planted_fault_shows(
    program: str,
    crash_point: str,
    platform: Any,
    run_host: Callable[..., Any],
    until: Callable[..., Any],
) -> None:
    """The exactness test above would fail: the same kills, one deliberate fault, and the result is wrong."""
    name = "faulty-" + crash_point.partition(".")[2].replace("_", "-").replace(":", "-")
    make_topics(platform, name, deduplicated=True)
    function = config(name, "EFFECTIVELY_ONCE")
    platform.publish(f"{name}-in", [b"%d" % n for n in range(MESSAGES)], batch=100)
    faulty = run_host("function", function, NUMBERS, crash_point=crash_point, program=program)
    assert faulty.died() == -signal.SIGKILL
    host = run_host("function", function, NUMBERS, program=program)
    host.said("ready")
    until(lambda: done(platform, name), "all inputs are acknowledged")
    assert results(platform, f"{name}-out") != EXPECTED
