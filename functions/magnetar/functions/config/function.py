"""FunctionConfig: what may be asked of a function, and the rules between its fields.

Beyond Apache: Python functions may be EFFECTIVELY_ONCE, have dead letters (`maxMessageRetries`, `deadLetterTopic`)
and windows (`windowConfig`, run by Spark). Extension: `terminateOutput`.
"""

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
from magnetar.functions.config.parts import ConsumerConfig, ProducerConfig, Resources, WindowConfig
from magnetar.functions.config.rules import (
    check_dead_letters,
    check_identity,
    check_inputs,
    check_ordering,
    check_output,
    check_producer,
)
from magnetar.functions.config.topics import check_topic
from magnetar.functions.errors import ConfigError

SPARK = "SPARK"


@dataclass(frozen=True)
class FunctionConfig(Config):
    """A function. Field meanings are Pulsar's unless a docstring says more."""

    tenant: str = setting(text, "public")
    namespace: str = setting(text, "default")
    name: str = setting(text, "")
    class_name: str | None = setting(text)
    inputs: tuple[str, ...] | None = setting(texts)
    topics_pattern: str | None = setting(text)
    custom_serde_inputs: Mapping[str, str] | None = setting(mapping(text))
    custom_schema_inputs: Mapping[str, str] | None = setting(mapping(text))
    custom_schema_outputs: Mapping[str, str] | None = setting(mapping(text))
    input_specs: Mapping[str, ConsumerConfig] | None = setting(mapping(part(ConsumerConfig)))
    input_type_class_name: str | None = setting(text)
    output_type_class_name: str | None = setting(text)
    output: str | None = setting(text)
    producer_config: ProducerConfig | None = setting(part(ProducerConfig))
    output_schema_type: str | None = setting(text)
    output_serde_class_name: str | None = setting(text)
    log_topic: str | None = setting(text)
    processing_guarantees: Guarantee = setting(member(Guarantee), Guarantee.ATLEAST_ONCE)
    retain_ordering: bool = setting(boolean, False)
    retain_key_ordering: bool = setting(boolean, False)
    batch_builder: str | None = setting(choice("DEFAULT", "KEY_BASED"))
    forward_source_message_property: bool = setting(boolean, True)
    user_config: Mapping[str, Any] | None = setting(anything)
    secrets: Mapping[str, Any] | None = setting(anything)
    runtime: str = setting(choice("PYTHON", SPARK, "JAVA", "GO"), "PYTHON")
    auto_ack: bool = setting(boolean, True)
    max_message_retries: int | None = setting(integer())
    """How often a failing message is tried again; negative or absent: for ever."""
    dead_letter_topic: str | None = setting(text)
    sub_name: str | None = setting(text)
    subscription_position: Position = setting(member(Position), Position.LATEST)
    skip_to_latest: bool = setting(boolean, False)
    parallelism: int = setting(integer(at_least=1), 1)
    resources: Resources = setting(part(Resources), factory=Resources)
    window_config: WindowConfig | None = setting(part(WindowConfig))
    timeout_ms: int | None = setting(integer(at_least=1))
    jar: str | None = setting(text)
    py: str | None = setting(text)
    go: str | None = setting(text)
    function_type: str | None = setting(text)
    cleanup_subscription: bool = setting(boolean, True)
    custom_runtime_options: str | None = setting(text)
    """Opaque to Pulsar. Here a JSON object: `engine` ("spark"), `hangTimeoutMs` (0 turns the watchdog off)."""
    runtime_flags: str | None = setting(text)
    max_pending_async_requests: int | None = setting(integer(at_least=1))
    expose_pulsar_admin_client_enabled: bool = setting(boolean, False)
    terminate_output: bool = setting(boolean, False)
    """When all inputs have ended (were terminated), finish them and terminate the output too."""

    @classmethod
    def from_dict(
        cls,
        data: Mapping[str, Any],
        *,
        tenant: str | None = None,
        namespace: str | None = None,
        name: str | None = None,
    ) -> FunctionConfig:
        """Read Pulsar's JSON; what the request's path says wins over its body.

        Raises:
            ConfigError: a value has the wrong type or is out of its range.
        """
        config = cls.parse("", data)
        inferred = name or config.name or (config.class_name or "").rpartition(".")[2]
        return dataclasses.replace(
            config, tenant=tenant or config.tenant, namespace=namespace or config.namespace, name=inferred
        )

    @property
    def fqfn(self) -> str:
        return f"{self.tenant}/{self.namespace}/{self.name}"

    @property
    def subscription(self) -> str:
        return self.sub_name or self.fqfn

    @property
    def subscription_type(self) -> str:
        """`failover`, `key_shared` or `shared`. Source: FunctionConfigUtils.getSubscriptionType."""
        if self.retain_ordering or self.processing_guarantees is Guarantee.EFFECTIVELY_ONCE:
            return "failover"
        return "key_shared" if self.retain_key_ordering else "shared"

    @property
    def retries(self) -> int | None:
        """How often a failing message is tried again; None: for ever."""
        limit = self.max_message_retries
        return None if limit is None or limit < 0 else limit

    @property
    def runs_on_spark(self) -> bool:
        """Whether its engine is Spark: by runtime or by the option `engine`."""
        return self.runtime == SPARK or self.runtime_options().get("engine") == "spark"

    def runtime_options(self) -> Mapping[str, Any]:
        """`customRuntimeOptions` as an object; empty where it holds something else (Pulsar keeps it opaque)."""
        try:
            options = json.loads(self.custom_runtime_options or "{}")
        except json.JSONDecodeError:
            return {}
        return options if isinstance(options, dict) else {}

    def resolved_inputs(self) -> dict[str, ConsumerConfig]:
        """All inputs by topic or pattern, whichever field they were given in. Raises ConfigError."""
        return resolve_inputs(
            {"inputs": self.inputs or ()},
            ("topicsPattern", self.topics_pattern),
            ("customSerdeInputs", self.custom_serde_inputs or {}),
            ("customSchemaInputs", self.custom_schema_inputs or {}),
            self.input_specs or {},
        )

    def validate(self) -> None:
        """Check the rules between fields. Raises ConfigError naming the first that is broken."""
        check_identity(self.tenant, self.namespace, self.name)
        if self.runtime in ("JAVA", "GO") or self.jar or self.go:
            raise ConfigError("runtime", "Magnetar runs PYTHON functions; JAVA and GO are not supported")
        if not (self.class_name or "").strip():
            raise ConfigError("className", "is required: module.Class, or a module with process(input)")
        inputs = self.resolved_inputs()
        check_inputs(inputs, "inputs")
        check_output("output", self.output, inputs)
        check_topic("logTopic", self.log_topic)
        check_output("logTopic", self.log_topic, inputs)
        check_ordering(self.retain_ordering, self.retain_key_ordering, self.processing_guarantees)
        check_dead_letters(self.max_message_retries, self.dead_letter_topic, inputs)
        check_producer("producerConfig", self.producer_config)
        self._check_guarantee()
        if self.output_schema_type and self.output_serde_class_name:
            raise ConfigError(
                "outputSerdeClassName", "give outputSchemaType or outputSerdeClassName, not both"
            )
        if self.window_config is not None:
            self._check_window(self.window_config)
        elif self.runtime == SPARK:
            raise ConfigError("windowConfig", "is required with runtime SPARK, which runs windows")

    def _check_guarantee(self) -> None:
        guarantee = self.processing_guarantees
        if guarantee is Guarantee.ATMOST_ONCE and not self.auto_ack:
            raise ConfigError("autoAck", "must be true with processingGuarantees ATMOST_ONCE")
        if guarantee is Guarantee.ATMOST_ONCE and (self.retries or 0) > 0:
            raise ConfigError(
                "maxMessageRetries", "cannot be more than 0 with ATMOST_ONCE: a message is tried once"
            )
        if self.timeout_ms is not None and guarantee is not Guarantee.ATLEAST_ONCE:
            raise ConfigError("timeoutMs", "can be set with processingGuarantees ATLEAST_ONCE only")
        if self.terminate_output and guarantee is Guarantee.MANUAL:
            raise ConfigError(
                "terminateOutput", "cannot be used with MANUAL: only the function knows when it is done"
            )
        if guarantee is Guarantee.EFFECTIVELY_ONCE:
            self._check_exact()

    def _check_exact(self) -> None:
        """Effectively once rests on topics that are stored, and that know a repeat."""
        if self.retries is not None and not self.dead_letter_topic:
            raise ConfigError("deadLetterTopic", "is required with EFFECTIVELY_ONCE and maxMessageRetries")
        topics = [("output", self.output), ("deadLetterTopic", self.dead_letter_topic)]
        for field, topic in topics + [("inputs", name) for name in self.resolved_inputs()]:
            if topic is not None and topic.startswith("non-persistent:"):
                raise ConfigError(
                    field, f"'{topic}' is not persistent: EFFECTIVELY_ONCE rests on stored messages"
                )

    def _check_window(self, window: WindowConfig) -> None:
        window.validate()
        if not self.runs_on_spark:
            raise ConfigError(
                "windowConfig", 'windows run on Spark: set customRuntimeOptions to \'{"engine": "spark"}\''
            )
        if self.processing_guarantees is Guarantee.MANUAL:
            raise ConfigError("processingGuarantees", "MANUAL cannot be used with windows")
