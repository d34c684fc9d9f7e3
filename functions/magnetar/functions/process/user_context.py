"""The contexts that user code is given: `Context` of the SDK for functions, those of Pulsar IO for connectors."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from magnetar.functions.context import Context
from magnetar.functions.errors import FunctionsError, PublishRefused, StateUnavailable
from magnetar.functions.process.channel import Channel
from magnetar.functions.process.codecs import load_serde
from magnetar.functions.process.current_message import CurrentMessage, MessageId
from magnetar.functions.process.job import Job
from magnetar.functions.process.members import join_members, property_field, varint
from magnetar.functions.process.metrics import UserMetrics
from magnetar.functions.process.wire import ToHost, headed_frame, json_frame

MESSAGE_SETTINGS = frozenset(
    (
        "properties",
        "partition_key",
        "ordering_key",
        "event_timestamp",
        "sequence_id",
        "replication_clusters",
        "disable_replication",
    )
)
_NO_STATE = "functions have no state in this version of Magnetar; keep it in a database of your own"


class FunctionContext(Context):
    """What is asked of the message is decoded when it is asked; see `Context` for the meanings."""

    def __init__(self, job: Job, channel: Channel, message: CurrentMessage, metrics: UserMetrics) -> None:
        self._job = job
        self._channel = channel
        self._message = message
        self._metrics = metrics
        self._serdes: dict[str, Any] = {}
        self._callbacks: dict[int, Callable[[Any, Any], None]] = {}
        self._topics = set(job.inputs)
        """What `ack` knows: the inputs as they were configured, and by their full names."""

    def add_topic(self, name: str) -> None:
        """Messages come from the topic of this full name."""
        self._topics.add(name)

    def get_message_id(self) -> MessageId | None:
        return self._message.message_id

    def get_message_key(self) -> str:
        return self._message.fields.key_text

    get_partition_key = get_message_key

    def get_message_eventtime(self) -> int:
        return self._message.fields.event_time

    def get_message_properties(self) -> dict[str, str]:
        return dict(self._message.fields.properties)

    def get_message_sequence_id(self) -> int:
        return self._message.fields.sequence_id

    def get_current_message_topic_name(self) -> str:
        return self._message.topic

    def get_message_partition_index(self) -> int:
        return self._message.entry.partition if self._message.entry is not None else -1

    def get_ordering_key(self) -> bytes | None:
        return self._message.fields.ordering_key

    def get_function_name(self) -> str:
        return self._job.name

    def get_function_tenant(self) -> str:
        return self._job.tenant

    def get_function_namespace(self) -> str:
        return self._job.namespace

    def get_function_id(self) -> str:
        return self._job.fqfn

    def get_function_version(self) -> str:
        return str(self._job.version)

    def get_instance_id(self) -> str:
        return str(self._job.instance_id)

    def get_logger(self) -> logging.Logger:
        return logging.getLogger()

    def get_user_config_value(self, key: str) -> Any:
        return self._job.user_config.get(key)

    def get_user_config_map(self) -> Mapping[str, Any]:
        return self._job.user_config

    def get_secret(self, secret_name: str) -> Any:
        return secret_value(self._job, secret_name)

    def record_metric(self, metric_name: str, metric_value: float) -> None:
        self._metrics.record(metric_name, metric_value)

    def get_input_topics(self) -> Sequence[str]:
        return list(self._job.inputs)

    def get_output_topic(self) -> str:
        return self._job.output

    def get_output_serde_class_name(self) -> str:
        return str(self._job.output_codec.get("serde") or "")

    def publish(
        self,
        topic_name: str,
        message: Any,
        serde_class_name: str = "serde.IdentitySerDe",
        properties: Mapping[str, str] | None = None,
        compression_type: Any = None,
        callback: Callable[[Any, Any], None] | None = None,
        message_conf: Mapping[str, Any] | None = None,
    ) -> None:
        if self._job.sequenced:
            raise PublishRefused(
                "context.publish has no place in a function with processingGuarantees EFFECTIVELY_ONCE: "
                "only what process() returns is published once; return it, or use ATLEAST_ONCE"
            )
        settings = dict(message_conf or {})
        unknown = set(settings) - MESSAGE_SETTINGS
        if unknown:
            raise FunctionsError(
                f"message_conf: {min(unknown)!r} is not supported; known: {', '.join(sorted(MESSAGE_SETTINGS))}"
            )
        if serde_class_name not in self._serdes:
            self._serdes[serde_class_name] = load_serde(serde_class_name)
        payload = self._serdes[serde_class_name].serialize(message)
        merged = {**(settings.get("properties") or {}), **(properties or {})}
        before = b"".join(property_field(key, value.encode()) for key, value in merged.items())
        if settings.get("partition_key") is not None:
            before += _text_field(0x12, settings["partition_key"].encode())
        after = b""
        if settings.get("event_timestamp") is not None:
            after += b"\x28" + varint(int(settings["event_timestamp"]))
        if settings.get("ordering_key") is not None:
            key = settings["ordering_key"]
            after += _text_field(0x3A, key if isinstance(key, bytes) else str(key).encode())
        call = self._channel.number_call()
        if callback is not None:
            self._callbacks[call] = callback
        entry = self._message.entry
        head = {
            "call": call,
            "topic": topic_name,
            "serial": -1 if entry is None else entry.serial,
            "compression": _compression_name(compression_type),
            "answer": callback is not None,
        }
        self._channel.send(headed_frame(ToHost.PUBLISH, head, join_members([payload], [before], [after])))

    def published(self, answer: Mapping[str, Any]) -> None:
        """The host's answer to a publish: its callback is called, in the loop's thread."""
        callback = self._callbacks.pop(answer["call"], None)
        if callback is not None:
            message_id = MessageId(*answer["id"]) if answer.get("id") else None
            callback(answer.get("error") or "Ok", message_id)

    def ack(self, msgid: Any, topic: str) -> None:
        if topic not in self._topics and not any(topic.startswith(f"{t}-partition-") for t in self._topics):
            raise ValueError(f"'{topic}' is no input of this function")
        fields = [msgid.ledger_id(), msgid.entry_id(), msgid.partition(), msgid.batch_index()]
        self._channel.send(json_frame(ToHost.ACK, {"id": fields, "topic": topic}))

    def incr_counter(self, key: str, amount: int) -> None:
        raise StateUnavailable(_NO_STATE)

    def get_counter(self, key: str) -> int:
        raise StateUnavailable(_NO_STATE)

    def del_counter(self, key: str) -> None:
        raise StateUnavailable(_NO_STATE)

    def put_state(self, key: str, value: Any) -> None:
        raise StateUnavailable(_NO_STATE)

    def get_state(self, key: str) -> Any:
        raise StateUnavailable(_NO_STATE)


class ConnectorContext:
    """What sources and sinks are both given."""

    def __init__(self, job: Job, metrics: UserMetrics) -> None:
        self._job = job
        self._metrics = metrics
        self.tenant = job.tenant
        self.namespace = job.namespace
        self.name = job.name
        self.instance_id = job.instance_id
        self.num_instances = job.num_instances
        self.logger = logging.getLogger(job.name)

    def secret(self, name: str) -> str | None:
        value = secret_value(self._job, name)
        return None if value is None else str(value)

    def record_metric(self, name: str, value: float) -> None:
        self._metrics.record(name, value)


class SourceContext(ConnectorContext):
    def __init__(self, job: Job, metrics: UserMetrics, channel: Channel) -> None:
        super().__init__(job, metrics)
        self._channel = channel
        self.output_topic = job.output

    def last_sequence(self, partition_id: str) -> int:
        """The highest sequence stored for that partition; -1: none. Raises FunctionsError if the host cannot tell."""
        answer = self._channel.ask({"last_sequence": partition_id})
        if answer.get("error"):
            raise FunctionsError(answer["error"])
        return int(answer["sequence"])


class SinkContext(ConnectorContext):
    def __init__(self, job: Job, metrics: UserMetrics) -> None:
        super().__init__(job, metrics)
        self.input_topics = list(job.inputs)
        self.rejected: list[tuple[Any, Exception]] = []

    def reject(self, record: Any, error: Exception) -> None:
        self.rejected.append((record, error))


def secret_value(job: Job, name: str) -> Any:
    """A secret: as it stands in the config, or from the environment where its object names a variable.

    Source: Pulsar's ClearText and EnvironmentBased secrets providers.
    """
    stored = job.secrets.get(name)
    if isinstance(stored, Mapping) and "env" in stored:
        return os.environ.get(str(stored["env"]))
    return stored


def _text_field(tag: int, value: bytes) -> bytes:
    return bytes((tag,)) + varint(len(value)) + value


def _compression_name(compression: Any) -> str:
    """`CompressionType.LZ4`, its name, or None."""
    if compression is None:
        return "none"
    return str(getattr(compression, "name", compression)).rpartition(".")[2].lower()
