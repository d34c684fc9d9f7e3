"""/admin/v2/persistent/…: single messages, as they are stored.

The body is the payload, decompressed; of a batch, all of it (size, metadata, payload, repeated). Everything
else is told in `X-Pulsar-…` headers. Source: Pulsar PersistentTopicsBase.generateResponseWithEntry.
"""

from __future__ import annotations

import json
from base64 import b64encode
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from magnetar.admin.answers import BYTES, Answer
from magnetar.admin.errors import Refused
from magnetar.admin.routes.targets import ONE, SUBSCRIPTION, runs, stored, subscription
from magnetar.admin.routing import Guards, Route
from magnetar.managed_ledger import Position
from magnetar.protocol.compression import decompress
from magnetar.protocol.message import split_message
from magnetar.protocol.pulsar_pb2 import CompressionType, MessageMetadata
from magnetar.protocol.texts import text
from magnetar.security.authorizer import Action

if TYPE_CHECKING:
    from magnetar.admin.call import Call
    from magnetar.broker.persistent_topic import PersistentTopic
    from magnetar.managed_ledger import Entry

_HEADER_BYTES_MAX: Final = 48 * 1024
"""Clients refuse responses with larger headers; properties beyond are left out, and that is said."""


async def peek(call: Call) -> Answer:
    """The n-th message a subscription has not acknowledged, counted from 1."""
    number = call.path_number("number")
    if number < 1:
        raise Refused(412, "Message position must be 1 or more")
    return raw(await (await subscription(call)).peek(number))


async def by_id(call: Call) -> Answer:
    """The message of an entry."""
    position = Position(call.path_number("ledger"), call.path_number("entry"))
    if position.ledger_id < 0 or position.entry_id < 0:
        raise Refused(404, f"Message not found: there is no entry {position.ledger_id}:{position.entry_id}")
    return raw(await (await stored(call)).read_entry(position))


async def examine(call: Call) -> Answer:
    """The n-th message from the beginning or from the end, counted from 1."""
    number = call.number("messagePosition", 1)
    initial = call.query.get("initialPosition") or "latest"
    if initial not in ("latest", "earliest"):
        raise Refused(412, f"initialPosition must be latest or earliest, not {initial[:40]!r}")
    topic = await stored(call)
    position = _nth(topic, max(1, number), from_end=initial == "latest")
    return raw(await topic.read_entry(position))


def _nth(topic: PersistentTopic, number: int, *, from_end: bool) -> Position:
    """Where the `number`-th entry is; beyond the other end, the last one there. Raises Refused: there is none."""
    found = runs(topic)
    if not found:
        raise Refused(412, "Could not examine messages: the topic has none")
    if from_end:
        found.reverse()
    left = number
    for run in found:
        if left <= run.entries:
            return Position(run.ledger_id, run.entries - left if from_end else left - 1)
        left -= run.entries
    return Position(found[-1].ledger_id, 0 if from_end else found[-1].entries - 1)


def raw(entry: Entry) -> Answer:
    """An entry as the REST interface tells it."""
    message = split_message(entry.data, verify=False)
    metadata = message.metadata
    payload = bytes(message.payload)
    if not metadata.encryption_keys and metadata.compression:
        payload = decompress(metadata.compression, payload, metadata.uncompressed_size)
    return Answer(200, payload, BYTES, _headers(entry, metadata, len(payload)))


def _headers(entry: Entry, metadata: MessageMetadata, size: int) -> dict[str, str]:
    told = {
        "Message-ID": f"{entry.position.ledger_id}:{entry.position.entry_id}",
        "publish-time": _time(metadata.publish_time),
        "producer-name": text(metadata.producer_name),
        "sequence-id": str(metadata.sequence_id),
    }
    if metadata.HasField("num_messages_in_batch"):
        told["num-batch-message"] = str(metadata.num_messages_in_batch)
        told["batch-size"] = str(size)
    if metadata.event_time:
        told["event-time"] = _time(metadata.event_time)
    if metadata.HasField("deliver_at_time"):
        told["deliver-at-time"] = _time(metadata.deliver_at_time)
    said = {field.name: value for field, value in metadata.ListFields()}
    for header, name in _TEXTS.items():
        if name in said:
            told[header] = text(said[name])
    for header, name in _BYTES.items():
        if name in said:
            told[header] = b64encode(said[name]).decode()
    for header, name in _NUMBERS.items():
        if name in said:
            told[header] = str(said[name])
    for header, name in _TRUTHS.items():
        if name in said:
            told[header] = str(said[name]).lower()
    if metadata.compression:
        told["compression"] = CompressionType.Name(metadata.compression)
        told["uncompressed-size"] = str(metadata.uncompressed_size)
    if metadata.replicate_to:
        told["replicated-to"] = ",".join(metadata.replicate_to)
    if metadata.encryption_keys:
        told["Is-Encrypted"] = "true"
        told["Base64-encryption-keys"] = b64encode(
            json.dumps(
                [{"key": key.key, "value": b64encode(key.value).decode()} for key in metadata.encryption_keys]
            ).encode()
        ).decode()
    if entry.broker_timestamp >= 0:
        told["Broker-Entry-METADATA-timestamp"] = _time(entry.broker_timestamp)
    if entry.index >= 0:
        told["Broker-Entry-METADATA-index"] = str(entry.index)
    properties = json.dumps({text(pair.key): text(pair.value) for pair in metadata.properties})
    if len(properties) > _HEADER_BYTES_MAX:
        told["PROPERTY-left-out"] = f"{len(properties)} bytes of properties do not fit a header"
    elif metadata.properties:
        told["PROPERTY"] = properties
    return {f"X-Pulsar-{name}": value for name, value in told.items()}


_TEXTS: Final = {
    "partition-key": "partition_key",
    "replicated-from": "replicated_from",
    "encryption-algo": "encryption_algo",
    "uuid": "uuid",
}
_BYTES: Final = {
    "Base64-ordering-key": "ordering_key",
    "Base64-schema-version": "schema_version",
    "Base64-encryption-param": "encryption_param",
}
_NUMBERS: Final = {
    "marker-type": "marker_type",
    "txnid-least-bits": "txnid_least_bits",
    "txnid-most-bits": "txnid_most_bits",
    "highest-sequence-id": "highest_sequence_id",
    "num-chunks-from-msg": "num_chunks_from_msg",
    "total-chunk-msg-size": "total_chunk_msg_size",
    "chunk-id": "chunk_id",
}
_TRUTHS: Final = {
    "partition-key-b64-encoded": "partition_key_b64_encoded",
    "null-value": "null_value",
    "null-partition-key": "null_partition_key",
}


def _time(time_ms: int) -> str:
    """ISO 8601 with an offset, as Java's clients parse it."""
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(time_ms)  # Whatever the producer wrote, it was no time of this calendar.
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


_CONSUME: Final = (Guards.TOPIC, Action.CONSUME)

ROUTES: Final = (
    Route("GET", f"{SUBSCRIPTION}/position/{{number}}", peek, *_CONSUME),
    Route("GET", f"{ONE}/ledger/{{ledger}}/entry/{{entry}}", by_id, *_CONSUME),
    Route("GET", f"{ONE}/examinemessage", examine, *_CONSUME, query=("initialPosition", "messagePosition")),
)
