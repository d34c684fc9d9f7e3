"""Configurations as typed values. The one place that knows which class reads which kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from magnetar.worker.component import Component, ComponentName, Kind
from magnetar.worker.errors import BadRequest

if TYPE_CHECKING:
    from magnetar.functions.config import FunctionConfig, SinkConfig, SourceConfig

    AnyConfig: TypeAlias = FunctionConfig | SourceConfig | SinkConfig


def parse_config(kind: Kind, data: Mapping[str, Any], name: ComponentName) -> AnyConfig:
    """A request's configuration under the name its path gives it. Raises BadRequest naming the wrong field."""
    from magnetar.functions.config import FunctionConfig, SinkConfig, SourceConfig
    from magnetar.functions.errors import ConfigError

    classes: dict[Kind, type[FunctionConfig] | type[SourceConfig] | type[SinkConfig]] = {
        Kind.FUNCTION: FunctionConfig,
        Kind.SOURCE: SourceConfig,
        Kind.SINK: SinkConfig,
    }
    try:
        config = classes[kind].from_dict(data, tenant=name.tenant, namespace=name.namespace, name=name.name)
        config.validate()
    except ConfigError as error:
        raise BadRequest(str(error)) from error
    return config


def updated_config(component: Component, patch: Mapping[str, Any]) -> AnyConfig:
    """The configuration after an update. Raises BadRequest: it is wrong, or alters what cannot be altered."""
    from magnetar.functions.config import merge_update
    from magnetar.functions.errors import ConfigError

    try:
        config: AnyConfig = merge_update(cast(Any, config_of(component)), patch)
        config.validate()
    except ConfigError as error:
        raise BadRequest(str(error)) from error
    return config


def config_of(component: Component) -> AnyConfig:
    return parse_config(component.kind, component.config, component.name)


def topics_of(config: AnyConfig) -> dict[str, list[str]]:
    """Full names of the topics (not patterns) that `config` names, by the field that names them."""
    from magnetar.functions.config import SinkConfig, SourceConfig
    from magnetar.functions.config.topics import full_name

    named: dict[str, str | None] = {"logTopic": config.log_topic}
    if not isinstance(config, SinkConfig):
        named["topicName" if isinstance(config, SourceConfig) else "output"] = config.output
    if not isinstance(config, SourceConfig):
        named["deadLetterTopic"] = config.dead_letter_topic
    return {"inputs": input_topics(config)} | {
        field: [full_name(field, topic)] for field, topic in named.items() if topic
    }


def input_topics(config: AnyConfig) -> list[str]:
    """Full names of the input topics that are named, rather than matched."""
    return [topic for topic, pattern in _inputs(config) if not pattern]


def input_patterns(config: AnyConfig) -> list[str]:
    """Patterns of full names."""
    return [topic for topic, pattern in _inputs(config) if pattern]


def _inputs(config: AnyConfig) -> list[tuple[str, bool]]:
    from magnetar.functions.config import SourceConfig
    from magnetar.functions.config.topics import full_name

    if isinstance(config, SourceConfig):
        return []
    return [
        (full_name("inputs", topic), spec.regex_pattern) for topic, spec in config.resolved_inputs().items()
    ]


def places_at_the_end(config: AnyConfig) -> list[tuple[str, str]]:
    """Topics by full name, with the subscription, that are read from the moment the component is there."""
    from magnetar.functions.config import FunctionConfig, Position, SourceConfig

    if isinstance(config, SourceConfig) or config.subscription_position is not Position.LATEST:
        return []
    if isinstance(config, FunctionConfig) and config.runs_on_spark:
        return []  # Spark keeps its place by itself, and reads from the beginning.
    return [
        (topic, config.subscription)
        for topic in input_topics(config)
        if not topic.startswith("non-persistent:")
    ]


def sequenced_topics(config: AnyConfig) -> list[str]:
    """Full names of the topics published to with sequence ids, which the broker has to deduplicate."""
    from magnetar.connectors.registry import builtin_connector
    from magnetar.functions.config import FunctionConfig, Guarantee, SourceConfig
    from magnetar.functions.config.topics import full_name

    exact = config.processing_guarantees is Guarantee.EFFECTIVELY_ONCE
    topics: list[str | None] = []
    if isinstance(config, SourceConfig):
        builtin = config.builtin and builtin_connector(config.archive or "", "source").sequenced
        topics = [config.output] if exact or builtin else []
    elif isinstance(config, FunctionConfig) and (exact or config.window_config is not None):
        topics = [config.output, config.dead_letter_topic]
    return [
        full_name("output", topic) for topic in topics if topic and not topic.startswith("non-persistent:")
    ]
