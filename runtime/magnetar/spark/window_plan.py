"""What a `windowConfig` means for Structured Streaming. Pure, and free of pyspark, so that a worker can ask
whether a window can run before it starts anything.

| windowConfig                  | here                                                                  |
|-------------------------------|-----------------------------------------------------------------------|
| windowLengthDurationMs        | length of the window, of event time                                   |
| slidingIntervalDurationMs     | its slide; absent: tumbling                                           |
| maxLagMs                      | the watermark's delay: how far behind the latest seen a row may come  |
| watermarkEmitIntervalMs       | the trigger's interval                                                |
| timestampExtractorClassName   | `json:FIELD`, or a class of the package with `extract_timestamp(bytes)` |

Windows are kept per message key, which Pulsar's are not. Counting windows have no event time and stay with
the in-process engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from magnetar.spark.errors import WindowUnsupported

JSON_FIELD = "json:"


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """A window, ready to be compiled.

    Attributes:
        inputs: full names of the topics read.
        output: where results go; None: nowhere, which only makes sense in tests.
        length_ms, slide_ms: of event time.
        max_lag_ms: the watermark's delay.
        trigger_ms: how often a micro-batch starts, at the least.
        timestamp: `json:FIELD`, a class name, or None for the message's event time (else its publish time).
        class_name: the user's window function; "" where `aggregates` say it all.
        aggregates: output field to SQL aggregate over the fields of `schema`, from `userConfig.aggregates`.
        schema: Spark DDL of the JSON payload, from `userConfig.schema`; needed for aggregates.
        user_config: handed to the user's function.
    """

    inputs: tuple[str, ...]
    output: str | None
    subscription: str
    length_ms: int
    slide_ms: int
    max_lag_ms: int
    trigger_ms: int
    timestamp: str | None
    class_name: str
    aggregates: tuple[tuple[str, str], ...]
    schema: str | None
    user_config: Mapping[str, Any]
    earliest: bool

    @property
    def timestamp_field(self) -> str | None:
        """The JSON field that holds the time, if it is one."""
        if self.timestamp and self.timestamp.startswith(JSON_FIELD):
            return self.timestamp[len(JSON_FIELD) :]
        return None


def plan_window(config: Mapping[str, Any]) -> WindowPlan:
    """Read a function's configuration (Pulsar's JSON names).

    Raises:
        WindowUnsupported: saying which setting cannot run on Spark, and what to do.
    """
    window = config.get("windowConfig")
    if not isinstance(window, Mapping):
        raise WindowUnsupported("windowConfig is missing: give at least windowLengthDurationMs")
    if window.get("windowLengthCount") or window.get("slidingIntervalCount"):
        raise WindowUnsupported(
            "windowLengthCount and slidingIntervalCount count messages and have no event time; on Spark a window "
            "has a duration: use windowLengthDurationMs and slidingIntervalDurationMs"
        )
    if window.get("lateDataTopic"):
        raise WindowUnsupported(
            "lateDataTopic: Structured Streaming drops what comes after the watermark; raise maxLagMs instead"
        )
    length = _duration(window, "windowLengthDurationMs", required=True)
    slide = _duration(window, "slidingIntervalDurationMs") or length
    if slide > length:
        raise WindowUnsupported(
            f"slidingIntervalDurationMs ({slide}) is longer than windowLengthDurationMs ({length}): rows between "
            "two windows would be in none"
        )
    user_config = config.get("userConfig") or {}
    aggregates = user_config.get("aggregates") or {}
    if aggregates and not user_config.get("schema"):
        raise WindowUnsupported(
            "userConfig.aggregates needs userConfig.schema, for example 'dep_delay DOUBLE'"
        )
    class_name = str(config.get("className") or "")
    if not aggregates and not class_name:
        raise WindowUnsupported("a window needs className, or userConfig.aggregates")
    inputs = _inputs(config)
    if not inputs:
        raise WindowUnsupported("a window needs at least one input topic")
    name = "/".join(str(config.get(part, "")) for part in ("tenant", "namespace", "name"))
    return WindowPlan(
        inputs=inputs,
        output=config.get("output") or None,
        subscription=str(config.get("subName") or name),
        length_ms=length,
        slide_ms=slide,
        max_lag_ms=_duration(window, "maxLagMs"),
        trigger_ms=_duration(window, "watermarkEmitIntervalMs") or 1000,
        timestamp=window.get("timestampExtractorClassName") or None,
        class_name=class_name,
        aggregates=tuple(sorted((str(name), str(expression)) for name, expression in aggregates.items())),
        schema=user_config.get("schema"),
        user_config=user_config,
        earliest=str(config.get("subscriptionPosition") or "Latest").lower() == "earliest",
    )


def _inputs(config: Mapping[str, Any]) -> tuple[str, ...]:
    named = [*(config.get("inputs") or ()), *(config.get("inputSpecs") or {})]
    return tuple(dict.fromkeys(str(topic) for topic in named))


def _duration(window: Mapping[str, Any], name: str, *, required: bool = False) -> int:
    value = window.get(name)
    if value is None and not required:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or value < (1 if required else 0):
        raise WindowUnsupported(f"{name} is {value!r}; expected a whole number of milliseconds above 0")
    return value
