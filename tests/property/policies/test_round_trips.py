"""Whatever is said of a namespace or topic is read back as it was written."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.policies.cluster import ClusterData
from magnetar.policies.errors import BadValue
from magnetar.policies.model import PolicyModel
from magnetar.policies.namespace import LocalPolicies, Policies
from magnetar.policies.records import decode, encode
from magnetar.policies.tenant import TenantInfo
from magnetar.policies.topic import PartitionedTopicMetadata, TopicPoliciesRecord
from tests.property.policies.strategies import models

KINDS = (ClusterData, TenantInfo, Policies, LocalPolicies, TopicPoliciesRecord, PartitionedTopicMetadata)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)


def no_nulls(value: Any) -> bool:
    if isinstance(value, dict):
        return all(each is not None and no_nulls(each) for each in value.values())
    return not isinstance(value, list) or all(no_nulls(each) for each in value)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_record_is_read_as_it_was_written(kind: type[PolicyModel], data: st.DataObject) -> None:
    record = data.draw(models(kind))
    stored = encode(record.to_json())
    assert stored.startswith(b'{"version":1')
    assert kind.read(decode("/path", stored)) == record
    told = record.to_json()
    assert no_nulls(told)
    assert kind.read(json.loads(json.dumps(told))) == record


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_unknown_fields_and_nulls_say_nothing(kind: type[PolicyModel], data: st.DataObject) -> None:
    record = data.draw(models(kind))
    told = record.to_json()
    known = {field.alias or name for name, field in kind.model_fields.items()} | set(kind.model_fields)
    unknown = data.draw(st.dictionaries(NAMES_NOBODY_HAS, JSON, max_size=3))
    nulls = {name: None for name in known - told.keys() if name not in kind.model_fields}
    assert kind.read({**told, **unknown, **nulls}) == record


NAMES_NOBODY_HAS = st.text(max_size=5).map(lambda text: f"?{text}")


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_numbers_and_truth_values_may_be_strings(kind: type[PolicyModel], data: st.DataObject) -> None:
    record = data.draw(models(kind))
    assert kind.read(_as_strings(record.to_json())) == record


def _as_strings(value: Any) -> Any:
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return repr(value)
        case dict():
            return {name: _as_strings(each) for name, each in value.items()}
        case list():
            return [_as_strings(each) for each in value]
        case _:
            return value


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(said=JSON)
def test_any_json_is_read_or_refused(kind: type[PolicyModel], said: Any) -> None:
    """Nothing else comes out, whatever comes in."""
    with suppress(BadValue):
        kind.read(said)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_one_field_of_any_json(kind: type[PolicyModel], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(kind.model_fields)))
    said = {kind.model_fields[name].alias or name: data.draw(JSON)}
    try:
        read = kind.read(said)
    except BadValue:
        return
    assert kind.read(read.to_json()) == read
