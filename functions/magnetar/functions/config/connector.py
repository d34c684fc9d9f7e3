"""SourceConfig and SinkConfig: what may be asked of connectors."""

# ruff: noqa: RUF009  (`setting` declares a field; it is called once per field, as it should)
from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from magnetar.functions.config.fields import (
    Config,
    Guarantee,
    Position,
    anything,
    boolean,
    choice,
    integer,
    mapping,
    member,
    part,
    setting,
    text,
    texts,
)
from magnetar.functions.config.inputs import resolve_inputs
from magnetar.functions.config.parts import BatchSourceConfig, ConsumerConfig, ProducerConfig, Resources
from magnetar.functions.config.rules import (
    check_dead_letters,
    check_identity,
    check_inputs,
    check_ordering,
    check_producer,
)
from magnetar.functions.config.topics import check_topic
from magnetar.functions.errors import ConfigError

BUILTIN = "builtin://"


@dataclass(frozen=True)
class ConnectorConfig(Config):
    """What sources and sinks have in common."""

    tenant: str = setting(text, "public")
    namespace: str = setting(text, "default")
    name: str = setting(text, "")
    class_name: str | None = setting(text)
    configs: Mapping[str, Any] | None = setting(anything)
    secrets: Mapping[str, Any] | None = setting(anything)
    parallelism: int = setting(integer(at_least=1), 1)
    processing_guarantees: Guarantee = setting(member(Guarantee), Guarantee.ATLEAST_ONCE)
    resources: Resources = setting(part(Resources), factory=Resources)
    archive: str | None = setting(text)
    runtime_flags: str | None = setting(text)
    custom_runtime_options: str | None = setting(text)
    log_topic: str | None = setting(text)

    @property
    def fqfn(self) -> str:
        return f"{self.tenant}/{self.namespace}/{self.name}"

    @property
    def builtin(self) -> bool:
        """Whether it is one of the connectors that come with the platform."""
        return (self.archive or "").startswith(BUILTIN)

    def runtime_options(self) -> Mapping[str, Any]:
        """`customRuntimeOptions` as an object; empty where it holds something else."""
        try:
            options = json.loads(self.custom_runtime_options or "{}")
        except json.JSONDecodeError:
            return {}
        return options if isinstance(options, dict) else {}

    def _check_common(self) -> None:
        check_identity(self.tenant, self.namespace, self.name)
        check_topic("logTopic", self.log_topic)
        if not self.builtin and not (self.class_name or "").strip():
            raise ConfigError(
                "className", "is required unless archive names a connector of ours (builtin://NAME)"
            )
        if self.processing_guarantees is Guarantee.MANUAL:
            raise ConfigError(
                "processingGuarantees", "MANUAL is for functions; connectors acknowledge by themselves"
            )


@dataclass(frozen=True)
class SourceConfig(ConnectorConfig):
    """A source: reads the outside world into `topicName`."""

    topic_name: str | None = setting(text)
    producer_config: ProducerConfig | None = setting(part(ProducerConfig))
    serde_class_name: str | None = setting(text)
    schema_type: str | None = setting(text)
    source_type: str | None = setting(text)
    batch_builder: str | None = setting(choice("DEFAULT", "KEY_BASED"))
    batch_source_config: BatchSourceConfig | None = setting(part(BatchSourceConfig))

    @classmethod
    def from_dict(
        cls,
        data: Mapping[str, Any],
        *,
        tenant: str | None = None,
        namespace: str | None = None,
        name: str | None = None,
    ) -> SourceConfig:
        """Read Pulsar's JSON; what the request's path says wins over its body. Raises ConfigError."""
        config = cls.parse("", _with_archive(data, "sourceType"))
        return dataclasses.replace(
            config,
            tenant=tenant or config.tenant,
            namespace=namespace or config.namespace,
            name=name or config.name,
        )

    @property
    def output(self) -> str | None:
        return self.topic_name

    @property
    def terminates(self) -> bool:
        """Whether the output topic is to be terminated once the source has ended."""
        return bool((self.configs or {}).get("terminate"))

    def validate(self) -> None:
        """Check the rules between fields. Raises ConfigError naming the first that is broken."""
        self._check_common()
        if not self.topic_name:
            raise ConfigError("topicName", "is required")
        check_topic("topicName", self.topic_name)
        check_producer("producerConfig", self.producer_config)
        if self.serde_class_name and self.schema_type:
            raise ConfigError("serdeClassName", "give schemaType or serdeClassName, not both")
        if self.batch_source_config is not None:
            raise ConfigError(
                "batchSourceConfig", "batch sources are not supported: return lists from read()"
            )
        if self.processing_guarantees is Guarantee.ATMOST_ONCE and self.terminates:
            raise ConfigError("configs.terminate", "needs receipts: use ATLEAST_ONCE or EFFECTIVELY_ONCE")


@dataclass(frozen=True)
class SinkConfig(ConnectorConfig):
    """A sink: writes messages to the outside world."""

    source_subscription_name: str | None = setting(text)
    source_subscription_position: Position = setting(member(Position), Position.LATEST)
    inputs: tuple[str, ...] | None = setting(texts)
    topics_pattern: str | None = setting(text)
    topic_to_serde_class_name: Mapping[str, str] | None = setting(mapping(text))
    topic_to_schema_type: Mapping[str, str] | None = setting(mapping(text))
    topic_to_schema_properties: Mapping[str, str] | None = setting(mapping(text))
    input_specs: Mapping[str, ConsumerConfig] | None = setting(mapping(part(ConsumerConfig)))
    max_message_retries: int | None = setting(integer())
    dead_letter_topic: str | None = setting(text)
    retain_ordering: bool = setting(boolean, False)
    retain_key_ordering: bool = setting(boolean, False)
    auto_ack: bool = setting(boolean, True)
    timeout_ms: int | None = setting(integer(at_least=0))
    negative_ack_redelivery_delay_ms: int | None = setting(integer(at_least=0))
    sink_type: str | None = setting(text)
    cleanup_subscription: bool = setting(boolean, True)
    transform_function: str | None = setting(text)
    transform_function_class_name: str | None = setting(text)
    transform_function_config: str | None = setting(text)

    @classmethod
    def from_dict(
        cls,
        data: Mapping[str, Any],
        *,
        tenant: str | None = None,
        namespace: str | None = None,
        name: str | None = None,
    ) -> SinkConfig:
        """Read Pulsar's JSON; what the request's path says wins over its body. Raises ConfigError."""
        config = cls.parse("", _with_archive(data, "sinkType"))
        return dataclasses.replace(
            config,
            tenant=tenant or config.tenant,
            namespace=namespace or config.namespace,
            name=name or config.name,
        )

    @property
    def subscription(self) -> str:
        return self.source_subscription_name or self.fqfn

    @property
    def subscription_position(self) -> Position:
        return self.source_subscription_position

    @property
    def subscription_type(self) -> str:
        """`failover`, `key_shared` or `shared`."""
        if self.retain_ordering or self.processing_guarantees is Guarantee.EFFECTIVELY_ONCE:
            return "failover"
        return "key_shared" if self.retain_key_ordering else "shared"

    @property
    def retries(self) -> int | None:
        """How often a failing batch is tried again; None: for ever."""
        limit = self.max_message_retries
        return None if limit is None or limit < 0 else limit

    def resolved_inputs(self) -> dict[str, ConsumerConfig]:
        """All inputs by topic or pattern, whichever field they were given in. Raises ConfigError."""
        return resolve_inputs(
            {"inputs": self.inputs or ()},
            ("topicsPattern", self.topics_pattern),
            ("topicToSerdeClassName", self.topic_to_serde_class_name or {}),
            ("topicToSchemaType", self.topic_to_schema_type or {}),
            self.input_specs or {},
        )

    def validate(self) -> None:
        """Check the rules between fields. Raises ConfigError naming the first that is broken."""
        self._check_common()
        inputs = self.resolved_inputs()
        check_inputs(inputs, "inputs")
        both = set(self.topic_to_serde_class_name or {}) & set(self.topic_to_schema_type or {})
        if both:
            raise ConfigError("topicToSchemaType", f"'{min(both)}' has a serde too: give one of them")
        check_ordering(self.retain_ordering, self.retain_key_ordering, self.processing_guarantees)
        check_dead_letters(self.max_message_retries, self.dead_letter_topic, inputs)
        if self.transform_function or self.transform_function_class_name:
            raise ConfigError("transformFunction", "is not supported: put a function before the sink")


def _with_archive(data: Mapping[str, Any], type_field: str) -> Mapping[str, Any]:
    """`sourceType: file` is another way to write `archive: builtin://file`."""
    kind = data.get(type_field) if isinstance(data, Mapping) else None
    if isinstance(kind, str) and kind and not data.get("archive"):
        return {**data, "archive": kind if "://" in kind else BUILTIN + kind}
    return data
