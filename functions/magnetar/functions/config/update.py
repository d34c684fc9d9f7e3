"""What an update may change. Source: FunctionConfigUtils, SourceConfigUtils and SinkConfigUtils.validateUpdate."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from magnetar.functions.config.connector import SinkConfig, SourceConfig
from magnetar.functions.config.fields import json_names
from magnetar.functions.config.function import FunctionConfig
from magnetar.functions.config.parts import ConsumerConfig, Resources
from magnetar.functions.errors import ConfigError

Component = TypeVar("Component", FunctionConfig, SourceConfig, SinkConfig)

IMMUTABLE: Mapping[type[Any], tuple[str, ...]] = {
    FunctionConfig: (
        "processingGuarantees",
        "retainOrdering",
        "retainKeyOrdering",
        "runtime",
        "autoAck",
        "subName",
        "outputSerdeClassName",
        "outputSchemaType",
    ),
    SourceConfig: ("processingGuarantees",),
    SinkConfig: (
        "processingGuarantees",
        "sourceSubscriptionName",
        "retainOrdering",
        "retainKeyOrdering",
        "autoAck",
    ),
}
IDENTITY = ("tenant", "namespace", "name", "fqfn")
INPUT_FIELDS = (
    "inputs",
    "topicsPattern",
    "customSerdeInputs",
    "customSchemaInputs",
    "inputSpecs",
    "topicToSerdeClassName",
    "topicToSchemaType",
)


def merge_update(old: Component, patch: Mapping[str, Any]) -> Component:
    """The config after an update: what `patch` (the request's JSON) gives replaces, the rest stays.

    An equal result means that the update changes nothing. Not validated: the caller does that on the whole.

    Raises:
        ConfigError: the update gives another value for what cannot be changed, or a wrong type.
    """
    names = json_names(type(old))
    given = {key for key, value in patch.items() if value not in (None, "", [], {}) and key in names}
    parsed = type(old).from_dict(patch, tenant=old.tenant, namespace=old.namespace, name=old.name)
    for key in IMMUTABLE[type(old)]:
        if key in given and getattr(parsed, names[key]) != getattr(old, names[key]):
            raise ConfigError(key, "cannot be altered by an update: delete and create instead")
    changes = {names[key]: getattr(parsed, names[key]) for key in given if key not in IDENTITY}
    if "resources" in given and isinstance(patch["resources"], Mapping):
        merged = {**old.resources.to_dict(), **patch["resources"]}
        changes["resources"] = Resources.parse("resources", merged)
    if not isinstance(old, SourceConfig):
        for key in INPUT_FIELDS:
            changes.pop(names.get(key, ""), None)
        if given & set(INPUT_FIELDS):
            assert not isinstance(parsed, SourceConfig)
            changes["input_specs"] = _merge_inputs(old.resolved_inputs(), parsed.resolved_inputs())
            if changes["input_specs"] == old.resolved_inputs():
                del changes["input_specs"]
    return dataclasses.replace(old, **changes)


def _merge_inputs(
    old: Mapping[str, ConsumerConfig], new: Mapping[str, ConsumerConfig]
) -> dict[str, ConsumerConfig]:
    """How known inputs are read may change; which they are may not."""
    for topic, spec in new.items():
        if topic not in old:
            raise ConfigError("inputs", f"Input Topics cannot be altered: '{topic}' is new")
        if spec.regex_pattern != old[topic].regex_pattern:
            raise ConfigError("inputSpecs", f"whether '{topic}' is a pattern cannot be altered")
    return {**old, **new}
