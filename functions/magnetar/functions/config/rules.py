"""Rules that functions, sources and sinks share."""

from __future__ import annotations

import re
from collections.abc import Mapping

from magnetar.functions.config.fields import Guarantee
from magnetar.functions.config.parts import ConsumerConfig, ProducerConfig
from magnetar.functions.config.topics import base_name, full_name
from magnetar.functions.errors import ConfigError

_NAME = re.compile(r"[-=:.\w]+", re.ASCII)


def check_identity(tenant: str, namespace: str, name: str) -> None:
    """Raises ConfigError unless the three can stand in a REST path."""
    for field, value in (("tenant", tenant), ("namespace", namespace), ("name", name)):
        if not value.strip():
            raise ConfigError(field, "is required")
        if not _NAME.fullmatch(value):
            raise ConfigError(field, f"'{value}' may hold letters, digits and - = : . _ only")


def check_inputs(inputs: Mapping[str, ConsumerConfig], field: str) -> None:
    """Raises ConfigError unless there are inputs, each with a schema that is complete."""
    if not inputs:
        raise ConfigError(field, "at least one input topic is required (inputs, topicsPattern or inputSpecs)")
    for topic, spec in inputs.items():
        if spec.crypto_config is not None:
            raise ConfigError(
                f"inputSpecs[{topic}].cryptoConfig", "is not supported: messages are not decrypted"
            )
        if spec.message_payload_processor_config is not None:
            raise ConfigError(f"inputSpecs[{topic}].messagePayloadProcessorConfig", "is not supported")


def check_output(field: str, topic: str | None, inputs: Mapping[str, ConsumerConfig]) -> None:
    """Raises ConfigError where `topic` is no topic, or one of the inputs: results would be read as inputs."""
    if not topic:
        return
    name = full_name(field, topic)
    for read, spec in inputs.items():
        if spec.regex_pattern:
            if re.fullmatch(full_name("topicsPattern", read), name):
                raise ConfigError(
                    field, f"'{topic}' matches the input pattern '{read}': it would be read as an input"
                )
        elif base_name(full_name("inputs", read)) == base_name(name):
            raise ConfigError(field, f"'{topic}' is also an input")


def check_ordering(retain_ordering: bool, retain_key_ordering: bool, guarantee: Guarantee) -> None:
    if retain_ordering and retain_key_ordering:
        raise ConfigError("retainKeyOrdering", "give retainOrdering or retainKeyOrdering, not both")
    if retain_key_ordering and guarantee is Guarantee.EFFECTIVELY_ONCE:
        raise ConfigError(
            "retainKeyOrdering", "cannot be used with EFFECTIVELY_ONCE, which keeps the order of all"
        )


def check_dead_letters(retries: int | None, topic: str | None, inputs: Mapping[str, ConsumerConfig]) -> None:
    if not topic:
        return
    if retries is None or retries < 0:
        raise ConfigError("maxMessageRetries", "must be 0 or more where deadLetterTopic is set")
    check_output("deadLetterTopic", topic, inputs)


def check_producer(field: str, producer: ProducerConfig | None) -> None:
    """Raises ConfigError for encryption: a producer that leaves it out would publish what was to be secret."""
    if producer is not None and producer.crypto_config is not None:
        raise ConfigError(f"{field}.cryptoConfig", "is not supported: messages would be stored unencrypted")
