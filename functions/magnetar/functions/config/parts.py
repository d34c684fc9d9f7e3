"""The small objects inside configs. Sources: pulsar-client-admin-api, org.apache.pulsar.common.{functions,io}."""

# ruff: noqa: RUF009  (`setting` declares a field; it is called once per field, as it should)
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from magnetar.functions.config.fields import (
    Config,
    anything,
    boolean,
    choice,
    integer,
    mapping,
    part,
    positive_number,
    setting,
    text,
    texts,
)
from magnetar.functions.config.topics import check_topic
from magnetar.functions.errors import ConfigError

GIBIBYTE = 1 << 30


@dataclass(frozen=True)
class Resources(Config):
    """What one instance asks for."""

    cpu: float = setting(positive_number, 1.0)
    ram: int = setting(integer(at_least=1), GIBIBYTE)
    """Bytes."""
    disk: int = setting(integer(at_least=1), 10 * GIBIBYTE)
    """Bytes."""


@dataclass(frozen=True)
class CryptoConfig(Config):
    """End-to-end encryption of messages."""

    crypto_key_reader_class_name: str | None = setting(text)
    crypto_key_reader_config: Mapping[str, Any] | None = setting(anything)
    encryption_keys: tuple[str, ...] | None = setting(texts)
    producer_crypto_failure_action: str | None = setting(choice("FAIL", "SEND"))
    consumer_crypto_failure_action: str | None = setting(choice("FAIL", "DISCARD", "CONSUME"))


@dataclass(frozen=True)
class ConsumerConfig(Config):
    """How one input topic is read. `schemaType` wins over `serdeClassName`."""

    ALIASES: ClassVar[Mapping[str, str]] = {"isRegexPattern": "regexPattern"}

    schema_type: str | None = setting(text)
    serde_class_name: str | None = setting(text)
    regex_pattern: bool = setting(boolean, False)
    schema_properties: Mapping[str, str] | None = setting(mapping(text))
    consumer_properties: Mapping[str, str] | None = setting(mapping(text))
    receiver_queue_size: int | None = setting(integer(at_least=0))
    crypto_config: CryptoConfig | None = setting(part(CryptoConfig))
    message_payload_processor_config: Mapping[str, Any] | None = setting(anything)
    pool_messages: bool = setting(boolean, False)


@dataclass(frozen=True)
class BatchingConfig(Config):
    enabled: bool = setting(boolean, True)
    batching_max_publish_delay_ms: int = setting(integer(at_least=0), 10)
    round_robin_router_batching_partition_switch_frequency: int | None = setting(integer(at_least=0))
    batching_max_messages: int | None = setting(integer(at_least=0))
    batching_max_bytes: int | None = setting(integer(at_least=0))
    batch_builder: str | None = setting(choice("DEFAULT", "KEY_BASED"))


@dataclass(frozen=True)
class ProducerConfig(Config):
    """How results are published."""

    max_pending_messages: int | None = setting(integer(at_least=0))
    max_pending_messages_across_partitions: int | None = setting(integer(at_least=0))
    use_thread_local_producers: bool | None = setting(boolean)
    crypto_config: CryptoConfig | None = setting(part(CryptoConfig))
    batch_builder: str | None = setting(choice("DEFAULT", "KEY_BASED"))
    compression_type: str = setting(choice("LZ4", "NONE", "ZLIB", "ZSTD", "SNAPPY"), "LZ4")
    batching_config: BatchingConfig | None = setting(part(BatchingConfig))


@dataclass(frozen=True)
class BatchSourceConfig(Config):
    discovery_triggerer_class_name: str | None = setting(text)
    discovery_triggerer_config: Mapping[str, Any] | None = setting(anything)


@dataclass(frozen=True)
class WindowConfig(Config):
    """Windows over a function's input, run by Spark. Lengths by count or by time, sliding or (default) tumbling."""

    window_length_count: int | None = setting(integer(at_least=1))
    window_length_duration_ms: int | None = setting(integer(at_least=1))
    sliding_interval_count: int | None = setting(integer(at_least=1))
    sliding_interval_duration_ms: int | None = setting(integer(at_least=1))
    late_data_topic: str | None = setting(text)
    max_lag_ms: int | None = setting(integer(at_least=0))
    watermark_emit_interval_ms: int | None = setting(integer(at_least=1))
    timestamp_extractor_class_name: str | None = setting(text)
    actual_window_function_class_name: str | None = setting(text)
    processing_guarantees: str | None = setting(choice("ATLEAST_ONCE", "ATMOST_ONCE", "EFFECTIVELY_ONCE"))

    def validate(self) -> None:
        """Raises ConfigError where the fields do not go together."""
        if (self.window_length_count is None) == (self.window_length_duration_ms is None):
            raise ConfigError(
                "windowConfig", "give windowLengthCount or windowLengthDurationMs, and not both"
            )
        if self.sliding_interval_count is not None and self.sliding_interval_duration_ms is not None:
            raise ConfigError(
                "windowConfig", "give slidingIntervalCount or slidingIntervalDurationMs, not both"
            )
        if self.late_data_topic is not None and self.timestamp_extractor_class_name is None:
            raise ConfigError(
                "windowConfig.lateDataTopic", "needs timestampExtractorClassName: only event time can be late"
            )
        check_topic("windowConfig.lateDataTopic", self.late_data_topic)
