"""One table of inputs from the many fields they may be given in."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping

from magnetar.functions.config.parts import ConsumerConfig
from magnetar.functions.config.topics import check_pattern, check_topic
from magnetar.functions.errors import ConfigError


def resolve_inputs(
    plain: Mapping[str, Iterable[str]],
    pattern: tuple[str, str | None],
    serdes: tuple[str, Mapping[str, str]],
    schemas: tuple[str, Mapping[str, str]],
    specs: Mapping[str, ConsumerConfig],
) -> dict[str, ConsumerConfig]:
    """Inputs by topic (or pattern), later fields over earlier ones. Source: FunctionConfigUtils.convert.

    Args:
        plain: field → topics that are read as they are.
        pattern, serdes, schemas: a field's name and what it holds. A schema is a JSON ConsumerConfig, or its name.
        specs: `inputSpecs`.
    Raises:
        ConfigError: a name is no topic, a pattern no expression, a schema no JSON.
    """
    resolved: dict[str, ConsumerConfig] = {}
    for field, topics in plain.items():
        for topic in topics:
            check_topic(field, topic)
            resolved[topic] = ConsumerConfig()
    pattern_field, expression = pattern
    if expression:
        check_pattern(pattern_field, expression)
        resolved[expression] = ConsumerConfig(regex_pattern=True)
    serde_field, serde_classes = serdes
    for topic, class_name in serde_classes.items():
        check_topic(serde_field, topic)
        resolved[topic] = ConsumerConfig(serde_class_name=class_name)
    schema_field, schema_texts = schemas
    for topic, schema in schema_texts.items():
        check_topic(schema_field, topic)
        resolved[topic] = _schema(f"{schema_field}[{topic}]", schema)
    for topic, spec in specs.items():
        check = check_pattern if spec.regex_pattern else check_topic
        check("inputSpecs", topic)
        resolved[topic] = dataclasses.replace(spec, serde_class_name=None) if spec.schema_type else spec
    return resolved


def _schema(field: str, schema: str) -> ConsumerConfig:
    if not schema.lstrip().startswith("{"):
        return ConsumerConfig(schema_type=schema)
    try:
        data = json.loads(schema)
    except json.JSONDecodeError as error:
        raise ConfigError(field, f"is no JSON: {error}") from None
    return ConsumerConfig.parse(field, data)
