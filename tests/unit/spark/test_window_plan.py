"""What a `windowConfig` becomes, and which ones are refused before anything is started."""

from __future__ import annotations

from typing import Any

import pytest

from magnetar.spark.errors import WindowUnsupported
from magnetar.spark.window_plan import plan_window

WINDOW = {"windowLengthDurationMs": 60_000}
CONFIG: dict[str, Any] = {
    "tenant": "public",
    "namespace": "default",
    "name": "w",
    "className": "m.C",
    "inputs": ["a"],
    "output": "b",
    "windowConfig": WINDOW,
}


def test_a_window_tumbles_unless_told_to_slide() -> None:
    plan = plan_window(CONFIG)
    assert (plan.length_ms, plan.slide_ms, plan.max_lag_ms, plan.trigger_ms) == (60_000, 60_000, 0, 1000)
    assert plan.subscription == "public/default/w"
    sliding = plan_window({**CONFIG, "windowConfig": {**WINDOW, "slidingIntervalDurationMs": 10_000}})
    assert sliding.slide_ms == 10_000


def test_the_time_may_be_a_field_of_the_payload() -> None:
    window = {**WINDOW, "timestampExtractorClassName": "json:time_hour"}
    assert plan_window({**CONFIG, "windowConfig": window}).timestamp_field == "time_hour"
    window["timestampExtractorClassName"] = "m.Extractor"
    assert plan_window({**CONFIG, "windowConfig": window}).timestamp_field is None


def test_inputs_come_from_both_places_once() -> None:
    plan = plan_window({**CONFIG, "inputs": ["a", "b"], "inputSpecs": {"b": {}, "c": {}}})
    assert plan.inputs == ("a", "b", "c")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"windowConfig": None}, "windowConfig"),
        ({"windowConfig": {}}, "windowLengthDurationMs"),
        ({"windowConfig": {"windowLengthDurationMs": "1 h"}}, "windowLengthDurationMs"),
        ({"windowConfig": {"windowLengthDurationMs": True}}, "windowLengthDurationMs"),
        ({"windowConfig": {"windowLengthCount": 5}}, "windowLengthCount"),
        ({"windowConfig": {**WINDOW, "slidingIntervalDurationMs": 60_001}}, "slidingIntervalDurationMs"),
        ({"windowConfig": {**WINDOW, "maxLagMs": -1}}, "maxLagMs"),
        ({"windowConfig": {**WINDOW, "lateDataTopic": "late"}}, "lateDataTopic"),
        ({"className": ""}, "className"),
        ({"inputs": []}, "input topic"),
        ({"userConfig": {"aggregates": {"n": "count(*)"}}}, "userConfig.schema"),
    ],
)
def test_what_cannot_run_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(WindowUnsupported, match=named):
        plan_window({**CONFIG, **change})
