"""The options of the format "pulsar": known names, and errors that say which one and what was expected."""

from __future__ import annotations

import pytest

from magnetar.spark.errors import OptionInvalid, OptionMissing
from magnetar.spark.options import SinkOptions, SourceOptions

SOURCE = {"service.url": "pulsar://127.0.0.1:6650", "topic": "a"}


def test_a_stream_reads_several_topics_and_names_do_not_depend_on_case() -> None:
    options = SourceOptions.parse(
        {"Service.URL": "pulsar://h:1", "topics": "a, b,", "STARTINGOFFSETS": "Earliest"}
    )
    assert (options.service_url, options.topics, options.starting) == ("pulsar://h:1", ("a", "b"), "earliest")


@pytest.mark.parametrize("missing", ["service.url", "topic"])
def test_what_is_missing_is_named_with_an_example(missing: str) -> None:
    with pytest.raises(OptionMissing, match=missing):
        SourceOptions.parse({name: value for name, value in SOURCE.items() if name != missing})


def test_a_limit_needs_the_admin_api() -> None:
    with pytest.raises(OptionMissing, match=r"admin\.url"):
        SourceOptions.parse({**SOURCE, "maxEntriesPerTrigger": "5"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("startingOffsets", "yesterday"),
        ("maxEntriesPerTrigger", "0"),
        ("maxEntriesPerTrigger", "many"),
        ("failOnDataLoss", "maybe"),
        ("pollTimeoutMs", "-1"),
    ],
)
def test_a_bad_value_of_the_source_is_named(name: str, value: str) -> None:
    with pytest.raises(OptionInvalid, match=name):
        SourceOptions.parse({**SOURCE, "admin.url": "http://h:1", name: value})


@pytest.mark.parametrize(("name", "value"), [("compression", "rar"), ("sequenceBits", "60")])
def test_a_bad_value_of_the_sink_is_named(name: str, value: str) -> None:
    with pytest.raises(OptionInvalid, match=name):
        SinkOptions.parse({**SOURCE, name: value})
