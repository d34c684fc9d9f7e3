"""A sample: one number of one metric at this moment, with its labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple, TypeAlias

Kind: TypeAlias = Literal["counter", "gauge", "histogram", "untyped"]

NO_LABELS: Mapping[str, str] = {}


class Sample(NamedTuple):
    """What one line of the exposition says.

    The kind is that of the family the line belongs to, which for `_bucket`, `_sum` and `_count` of a
    histogram is the name without that ending.
    """

    name: str
    labels: Mapping[str, str]
    value: float
    kind: Kind = "gauge"


Collector: TypeAlias = Callable[[], Iterable[Sample]]
"""Called at each scrape. A generator is best: a page of a million samples is then never held whole. All samples
of one metric come one after the other, as the format asks."""


def gauge(name: str, value: float, labels: Mapping[str, str] = NO_LABELS) -> Sample:
    """A number that goes up and down."""
    return Sample(name, labels, value, "gauge")


def counter(name: str, value: float, labels: Mapping[str, str] = NO_LABELS) -> Sample:
    """A number that only grows while the process lives."""
    return Sample(name, labels, value, "counter")
