"""What a broker says to a client, except for the hot commands. Each function returns a whole frame.

A field whose mere presence means something (an error code, though it be 0) is set only where it means
it; every required field is set, if only to an empty string.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from magnetar.protocol import versions
from magnetar.protocol.frames import encode_command
from magnetar.protocol.ids import MessageId
from magnetar.protocol.pulsar_pb2 import (
    AuthData,
    BaseCommand,
    CommandAckResponse,
    CommandActiveConsumerChange,
    CommandAuthChallenge,
    CommandCloseConsumer,
    CommandCloseProducer,
    CommandConnected,
    CommandConsumerStatsResponse,
    CommandError,
    CommandGetLastMessageIdResponse,
    CommandGetOrCreateSchemaResponse,
    CommandGetSchemaResponse,
    CommandGetTopicsOfNamespaceResponse,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadataResponse,
    CommandProducerSuccess,
    CommandReachedEndOfTopic,
    CommandSendError,
    CommandSuccess,
    CommandTopicMigrated,
    CommandWatchTopicListSuccess,
    CommandWatchTopicUpdate,
    FeatureFlags,
    Schema,
    ServerError,
)
from magnetar.protocol.varint import MASK_64

NO_REQUEST: Final = MASK_64
"""The request id of what answers no request."""


def connected(
    server_version: str,
    *,
    protocol_version: int,
    max_message_bytes: int,
    feature_flags: FeatureFlags | None = None,
) -> bytes:
    """The handshake is done. `protocol_version` is the lower of both sides'."""
    body = CommandConnected(
        server_version=server_version,
        protocol_version=protocol_version,
        max_message_size=max_message_bytes,
        feature_flags=feature_flags
        or FeatureFlags(supports_get_partitioned_metadata_without_auto_creation=True),
    )
    return encode_command(BaseCommand(type=BaseCommand.CONNECTED, connected=body))


def auth_challenge(
    server_version: str, auth_method_name: str, challenge: bytes, protocol_version: int = versions.CURRENT
) -> bytes:
    """Show new credentials."""
    body = CommandAuthChallenge(
        server_version=server_version,
        challenge=AuthData(auth_method_name=auth_method_name, auth_data=challenge),
        protocol_version=protocol_version,
    )
    return encode_command(BaseCommand(type=BaseCommand.AUTH_CHALLENGE, authChallenge=body))


def success(request_id: int, schema: Schema | None = None) -> bytes:
    """Done as asked."""
    body = CommandSuccess(request_id=request_id, schema=schema)
    return encode_command(BaseCommand(type=BaseCommand.SUCCESS, success=body))


def error(request_id: int, code: ServerError.ValueType, message: str) -> bytes:
    """Not done; `NO_REQUEST` where no request was at fault."""
    body = CommandError(request_id=request_id, error=code, message=message)
    return encode_command(BaseCommand(type=BaseCommand.ERROR, error=body))


def partitioned_metadata_response(request_id: int, partitions: int) -> bytes:
    """A topic has `partitions` partitions; 0: it is not partitioned."""
    body = CommandPartitionedTopicMetadataResponse(
        request_id=request_id,
        partitions=partitions,
        response=CommandPartitionedTopicMetadataResponse.Success,
    )
    return _partitioned_metadata_response(body)


def partitioned_metadata_failed(request_id: int, code: ServerError.ValueType, message: str) -> bytes:
    """How many partitions a topic has cannot be told."""
    body = CommandPartitionedTopicMetadataResponse(
        request_id=request_id,
        response=CommandPartitionedTopicMetadataResponse.Failed,
        error=code,
        message=message,
    )
    return _partitioned_metadata_response(body)


def _partitioned_metadata_response(body: CommandPartitionedTopicMetadataResponse) -> bytes:
    return encode_command(
        BaseCommand(type=BaseCommand.PARTITIONED_METADATA_RESPONSE, partitionMetadataResponse=body)
    )


def lookup_response(
    request_id: int,
    broker_url: str,
    broker_url_tls: str = "",
    *,
    redirect: bool = False,
    authoritative: bool = True,
    proxy_through_service_url: bool = False,
) -> bytes:
    """Connect to this broker; or, with `redirect`, ask it."""
    body = CommandLookupTopicResponse(
        request_id=request_id,
        brokerServiceUrl=broker_url,
        brokerServiceUrlTls=broker_url_tls,
        response=CommandLookupTopicResponse.Redirect if redirect else CommandLookupTopicResponse.Connect,
        authoritative=authoritative,
        proxy_through_service_url=proxy_through_service_url,
    )
    return encode_command(BaseCommand(type=BaseCommand.LOOKUP_RESPONSE, lookupTopicResponse=body))


def lookup_failed(request_id: int, code: ServerError.ValueType, message: str) -> bytes:
    """Nobody can be named. Clients close the whole connection on ServiceNotReady and TooManyRequests."""
    body = CommandLookupTopicResponse(
        request_id=request_id, response=CommandLookupTopicResponse.Failed, error=code, message=message
    )
    return encode_command(BaseCommand(type=BaseCommand.LOOKUP_RESPONSE, lookupTopicResponse=body))


def topics_of_namespace(
    request_id: int, topics: Iterable[str], *, topics_hash: str, filtered: bool = False, changed: bool = True
) -> bytes:
    """The topics of a namespace; partitioned ones as their partitions."""
    body = CommandGetTopicsOfNamespaceResponse(
        request_id=request_id, topics=topics, filtered=filtered, topics_hash=topics_hash, changed=changed
    )
    return encode_command(
        BaseCommand(type=BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE, getTopicsOfNamespaceResponse=body)
    )


def watch_topic_list_success(
    request_id: int, watcher_id: int, topics: Iterable[str], topics_hash: str
) -> bytes:
    """A watch begins; these topics match now."""
    body = CommandWatchTopicListSuccess(
        request_id=request_id, watcher_id=watcher_id, topic=topics, topics_hash=topics_hash
    )
    return encode_command(BaseCommand(type=BaseCommand.WATCH_TOPIC_LIST_SUCCESS, watchTopicListSuccess=body))


def watch_topic_update(
    watcher_id: int, new_topics: Iterable[str], deleted_topics: Iterable[str], topics_hash: str
) -> bytes:
    """The matching topics have changed; the hash is of all of them as they are now."""
    body = CommandWatchTopicUpdate(
        watcher_id=watcher_id, new_topics=new_topics, deleted_topics=deleted_topics, topics_hash=topics_hash
    )
    return encode_command(BaseCommand(type=BaseCommand.WATCH_TOPIC_UPDATE, watchTopicUpdate=body))


def topic_migrated(
    resource_id: int,
    resource_type: CommandTopicMigrated.ResourceType.ValueType,
    broker_url: str,
    broker_url_tls: str = "",
) -> bytes:
    """A producer or consumer is to go to another cluster."""
    body = CommandTopicMigrated(
        resource_id=resource_id,
        resource_type=resource_type,
        brokerServiceUrl=broker_url,
        brokerServiceUrlTls=broker_url_tls,
    )
    return encode_command(BaseCommand(type=BaseCommand.TOPIC_MIGRATED, topicMigrated=body))


def producer_success(
    request_id: int,
    producer_name: str,
    *,
    last_sequence_id: int = -1,
    schema_version: bytes = b"",
    topic_epoch: int | None = None,
    ready: bool = True,
) -> bytes:
    """A producer exists; with `ready=False` it has to wait for a second such answer."""
    body = CommandProducerSuccess(
        request_id=request_id,
        producer_name=producer_name,
        last_sequence_id=last_sequence_id,
        schema_version=schema_version,
        topic_epoch=topic_epoch,
        producer_ready=ready,
    )
    return encode_command(BaseCommand(type=BaseCommand.PRODUCER_SUCCESS, producer_success=body))


def send_error(producer_id: int, sequence_id: int, code: ServerError.ValueType, message: str) -> bytes:
    """A message was not stored. Most clients close the connection on it, and send again."""
    body = CommandSendError(
        producer_id=producer_id, sequence_id=sequence_id & MASK_64, error=code, message=message
    )
    return encode_command(BaseCommand(type=BaseCommand.SEND_ERROR, send_error=body))


def close_producer(
    producer_id: int, broker_url: str | None = None, broker_url_tls: str | None = None
) -> bytes:
    """The broker lets a producer go; it will look its topic up anew, or go where it is told."""
    body = CommandCloseProducer(
        producer_id=producer_id,
        request_id=NO_REQUEST,
        assignedBrokerServiceUrl=broker_url,
        assignedBrokerServiceUrlTls=broker_url_tls,
    )
    return encode_command(BaseCommand(type=BaseCommand.CLOSE_PRODUCER, close_producer=body))


def close_consumer(
    consumer_id: int, broker_url: str | None = None, broker_url_tls: str | None = None
) -> bytes:
    """The broker lets a consumer go; it will look its topic up anew, or go where it is told."""
    body = CommandCloseConsumer(
        consumer_id=consumer_id,
        request_id=NO_REQUEST,
        assignedBrokerServiceUrl=broker_url,
        assignedBrokerServiceUrlTls=broker_url_tls,
    )
    return encode_command(BaseCommand(type=BaseCommand.CLOSE_CONSUMER, close_consumer=body))


def ack_response(
    consumer_id: int,
    request_id: int,
    code: ServerError.ValueType | None = None,
    message: str | None = None,
    *,
    txnid_least_bits: int = 0,
    txnid_most_bits: int = 0,
) -> bytes:
    """An acknowledgement is durable, or failed."""
    body = CommandAckResponse(consumer_id=consumer_id, request_id=request_id, error=code, message=message)
    if txnid_least_bits or txnid_most_bits:
        body.txnid_least_bits = txnid_least_bits
        body.txnid_most_bits = txnid_most_bits
    return encode_command(BaseCommand(type=BaseCommand.ACK_RESPONSE, ackResponse=body))


def active_consumer_change(consumer_id: int, is_active: bool) -> bytes:
    """A consumer of a failover subscription has become, or is no longer, the one that receives."""
    body = CommandActiveConsumerChange(consumer_id=consumer_id, is_active=is_active)
    return encode_command(BaseCommand(type=BaseCommand.ACTIVE_CONSUMER_CHANGE, active_consumer_change=body))


def reached_end_of_topic(consumer_id: int) -> bytes:
    """The topic is terminated and this subscription has it all. Only for clients known to bear it."""
    body = CommandReachedEndOfTopic(consumer_id=consumer_id)
    return encode_command(BaseCommand(type=BaseCommand.REACHED_END_OF_TOPIC, reachedEndOfTopic=body))


def last_message_id(
    request_id: int, message_id: MessageId, mark_delete: tuple[int, int] | None = None
) -> bytes:
    """The last message of a topic, and up to where the subscription is acknowledged."""
    body = CommandGetLastMessageIdResponse(request_id=request_id, last_message_id=message_id.to_data())
    body.last_message_id.partition = message_id.partition
    body.last_message_id.batch_index = message_id.batch_index
    if mark_delete is not None:
        body.consumer_mark_delete_position.ledgerId = mark_delete[0] & MASK_64
        body.consumer_mark_delete_position.entryId = mark_delete[1] & MASK_64
    return encode_command(
        BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE, getLastMessageIdResponse=body)
    )


def consumer_stats_response(body: CommandConsumerStatsResponse) -> bytes:
    """The figures of a consumer; leave `error_code` unset on success."""
    return encode_command(BaseCommand(type=BaseCommand.CONSUMER_STATS_RESPONSE, consumerStatsResponse=body))


def schema_response(request_id: int, schema: Schema, schema_version: bytes) -> bytes:
    """A version of a topic's schema."""
    body = CommandGetSchemaResponse(request_id=request_id, schema=schema, schema_version=schema_version)
    return encode_command(BaseCommand(type=BaseCommand.GET_SCHEMA_RESPONSE, getSchemaResponse=body))


def schema_failed(request_id: int, code: ServerError.ValueType, message: str) -> bytes:
    """There is no such schema."""
    body = CommandGetSchemaResponse(request_id=request_id, error_code=code, error_message=message)
    return encode_command(BaseCommand(type=BaseCommand.GET_SCHEMA_RESPONSE, getSchemaResponse=body))


def get_or_create_schema_response(request_id: int, schema_version: bytes) -> bytes:
    """A schema is registered under this version."""
    body = CommandGetOrCreateSchemaResponse(request_id=request_id, schema_version=schema_version)
    return _get_or_create_schema_response(body)


def get_or_create_schema_failed(request_id: int, code: ServerError.ValueType, message: str) -> bytes:
    """A schema is refused."""
    body = CommandGetOrCreateSchemaResponse(request_id=request_id, error_code=code, error_message=message)
    return _get_or_create_schema_response(body)


def _get_or_create_schema_response(body: CommandGetOrCreateSchemaResponse) -> bytes:
    return encode_command(
        BaseCommand(type=BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE, getOrCreateSchemaResponse=body)
    )
