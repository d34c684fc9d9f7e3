"""What a client says to a broker, except for the hot commands. Each function returns a whole frame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from magnetar.protocol import versions
from magnetar.protocol.frames import encode_command
from magnetar.protocol.ids import MessageId
from magnetar.protocol.pulsar_pb2 import (
    AuthData,
    BaseCommand,
    CommandAuthResponse,
    CommandCloseConsumer,
    CommandCloseProducer,
    CommandConnect,
    CommandConsumerStats,
    CommandGetLastMessageId,
    CommandGetOrCreateSchema,
    CommandGetSchema,
    CommandGetTopicsOfNamespace,
    CommandLookupTopic,
    CommandPartitionedTopicMetadata,
    CommandPing,
    CommandPong,
    CommandProducer,
    CommandRedeliverUnacknowledgedMessages,
    CommandSeek,
    CommandSubscribe,
    CommandUnsubscribe,
    CommandWatchTopicList,
    CommandWatchTopicListClose,
    FeatureFlags,
    KeySharedMeta,
    KeyValue,
    ProducerAccessMode,
    Schema,
)


def key_values(pairs: Mapping[str, str]) -> list[KeyValue]:
    """A mapping as commands and metadata carry it."""
    return [KeyValue(key=key, value=value) for key, value in pairs.items()]


def connect(
    client_version: str,
    *,
    auth_method_name: str | None = None,
    auth_data: bytes | None = None,
    proxy_to_broker_url: str | None = None,
    protocol_version: int = versions.CURRENT,
) -> bytes:
    """The first command of a connection."""
    body = CommandConnect(
        client_version=client_version,
        protocol_version=protocol_version,
        auth_method_name=auth_method_name,
        auth_data=auth_data,
        proxy_to_broker_url=proxy_to_broker_url,
        feature_flags=FeatureFlags(
            supports_auth_refresh=True, supports_broker_entry_metadata=True, supports_partial_producer=True
        ),
    )
    return encode_command(BaseCommand(type=BaseCommand.CONNECT, connect=body))


def auth_response(client_version: str, auth_method_name: str, auth_data: bytes) -> bytes:
    """New credentials, in answer to AUTH_CHALLENGE."""
    body = CommandAuthResponse(
        client_version=client_version,
        protocol_version=versions.CURRENT,
        response=AuthData(auth_method_name=auth_method_name, auth_data=auth_data),
    )
    return encode_command(BaseCommand(type=BaseCommand.AUTH_RESPONSE, authResponse=body))


def ping() -> bytes:
    """Either side: are you there?"""
    return encode_command(BaseCommand(type=BaseCommand.PING, ping=CommandPing()))


def pong() -> bytes:
    """Either side: I am."""
    return encode_command(BaseCommand(type=BaseCommand.PONG, pong=CommandPong()))


def partitioned_metadata(topic: str, request_id: int, *, auto_creation: bool = True) -> bytes:
    """How many partitions has `topic`?"""
    body = CommandPartitionedTopicMetadata(topic=topic, request_id=request_id)
    if not auto_creation:
        body.metadata_auto_creation_enabled = False
    return encode_command(BaseCommand(type=BaseCommand.PARTITIONED_METADATA, partitionMetadata=body))


def lookup(
    topic: str, request_id: int, *, authoritative: bool = False, listener_name: str | None = None
) -> bytes:
    """Which broker serves `topic`?"""
    body = CommandLookupTopic(topic=topic, request_id=request_id, authoritative=authoritative)
    if listener_name:
        body.advertised_listener_name = listener_name
    return encode_command(BaseCommand(type=BaseCommand.LOOKUP, lookupTopic=body))


def get_topics_of_namespace(
    namespace: str,
    request_id: int,
    *,
    mode: CommandGetTopicsOfNamespace.Mode.ValueType = CommandGetTopicsOfNamespace.PERSISTENT,
    topics_pattern: str | None = None,
    topics_hash: str | None = None,
) -> bytes:
    """Which topics has `namespace`?"""
    body = CommandGetTopicsOfNamespace(
        request_id=request_id,
        namespace=namespace,
        mode=mode,
        topics_pattern=topics_pattern,
        topics_hash=topics_hash,
    )
    return encode_command(BaseCommand(type=BaseCommand.GET_TOPICS_OF_NAMESPACE, getTopicsOfNamespace=body))


def producer(
    topic: str,
    producer_id: int,
    request_id: int,
    *,
    producer_name: str | None = None,
    user_provided_name: bool = True,
    epoch: int = 0,
    metadata: Mapping[str, str] | None = None,
    schema: Schema | None = None,
    access_mode: ProducerAccessMode.ValueType = ProducerAccessMode.Shared,
    topic_epoch: int | None = None,
    encrypted: bool = False,
    initial_subscription_name: str | None = None,
) -> bytes:
    """Create a producer on this connection."""
    body = CommandProducer(
        topic=topic,
        producer_id=producer_id,
        request_id=request_id,
        producer_name=producer_name,
        user_provided_producer_name=user_provided_name,
        epoch=epoch,
        metadata=key_values(metadata or {}),
        schema=schema,
        producer_access_mode=access_mode,
        topic_epoch=topic_epoch,
        initial_subscription_name=initial_subscription_name or None,
    )
    if encrypted:
        body.encrypted = True
    return encode_command(BaseCommand(type=BaseCommand.PRODUCER, producer=body))


def close_producer(producer_id: int, request_id: int) -> bytes:
    """Close a producer."""
    body = CommandCloseProducer(producer_id=producer_id, request_id=request_id)
    return encode_command(BaseCommand(type=BaseCommand.CLOSE_PRODUCER, close_producer=body))


def subscribe(
    topic: str,
    subscription: str,
    sub_type: CommandSubscribe.SubType.ValueType,
    consumer_id: int,
    request_id: int,
    *,
    consumer_name: str | None = None,
    priority_level: int | None = None,
    durable: bool = True,
    start_message_id: MessageId | None = None,
    metadata: Mapping[str, str] | None = None,
    subscription_properties: Mapping[str, str] | None = None,
    read_compacted: bool = False,
    schema: Schema | None = None,
    initial_position: CommandSubscribe.InitialPosition.ValueType = CommandSubscribe.Latest,
    force_topic_creation: bool = True,
    start_rollback_s: int = 0,
    key_shared: KeySharedMeta | None = None,
    consumer_epoch: int | None = None,
) -> bytes:
    """Create a consumer on this connection. It receives nothing before its first FLOW."""
    body = CommandSubscribe(
        topic=topic,
        subscription=subscription,
        subType=sub_type,
        consumer_id=consumer_id,
        request_id=request_id,
        consumer_name=consumer_name,
        priority_level=priority_level,
        durable=durable,
        start_message_id=None if start_message_id is None else start_message_id.to_data(),
        metadata=key_values(metadata or {}),
        subscription_properties=key_values(subscription_properties or {}),
        read_compacted=read_compacted,
        schema=schema,
        initialPosition=initial_position,
        force_topic_creation=force_topic_creation,
        keySharedMeta=key_shared,
        consumer_epoch=consumer_epoch,
    )
    if start_rollback_s:
        body.start_message_rollback_duration_sec = start_rollback_s
    return encode_command(BaseCommand(type=BaseCommand.SUBSCRIBE, subscribe=body))


def redeliver(
    consumer_id: int, message_ids: Iterable[MessageId] = (), *, consumer_epoch: int | None = None
) -> bytes:
    """Send these entries again; all that this consumer has not acknowledged if none is named."""
    body = CommandRedeliverUnacknowledgedMessages(
        consumer_id=consumer_id,
        message_ids=[message_id.to_data() for message_id in message_ids],
        consumer_epoch=consumer_epoch,
    )
    return encode_command(
        BaseCommand(type=BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES, redeliverUnacknowledgedMessages=body)
    )


def unsubscribe(consumer_id: int, request_id: int, *, force: bool = False) -> bytes:
    """Delete the subscription of this consumer."""
    body = CommandUnsubscribe(consumer_id=consumer_id, request_id=request_id)
    if force:
        body.force = True
    return encode_command(BaseCommand(type=BaseCommand.UNSUBSCRIBE, unsubscribe=body))


def close_consumer(consumer_id: int, request_id: int) -> bytes:
    """Close a consumer; its subscription stays."""
    body = CommandCloseConsumer(consumer_id=consumer_id, request_id=request_id)
    return encode_command(BaseCommand(type=BaseCommand.CLOSE_CONSUMER, close_consumer=body))


def seek_to_message(
    consumer_id: int, request_id: int, message_id: MessageId, ack_set: Sequence[int] = ()
) -> bytes:
    """Move the subscription: the next message is the one named, or the next that exists."""
    body = CommandSeek(consumer_id=consumer_id, request_id=request_id, message_id=message_id.to_data(ack_set))
    return encode_command(BaseCommand(type=BaseCommand.SEEK, seek=body))


def seek_to_time(consumer_id: int, request_id: int, timestamp_ms: int) -> bytes:
    """Move the subscription to the first message at or after a time."""
    body = CommandSeek(consumer_id=consumer_id, request_id=request_id, message_publish_time=timestamp_ms)
    return encode_command(BaseCommand(type=BaseCommand.SEEK, seek=body))


def get_last_message_id(consumer_id: int, request_id: int) -> bytes:
    """Which is the last message of the consumer's topic?"""
    body = CommandGetLastMessageId(consumer_id=consumer_id, request_id=request_id)
    return encode_command(BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID, getLastMessageId=body))


def consumer_stats(consumer_id: int, request_id: int) -> bytes:
    """How is this consumer doing?"""
    body = CommandConsumerStats(request_id=request_id, consumer_id=consumer_id)
    return encode_command(BaseCommand(type=BaseCommand.CONSUMER_STATS, consumerStats=body))


def get_schema(topic: str, request_id: int, schema_version: bytes | None = None) -> bytes:
    """A version of a topic's schema, the latest by default."""
    body = CommandGetSchema(request_id=request_id, topic=topic, schema_version=schema_version)
    return encode_command(BaseCommand(type=BaseCommand.GET_SCHEMA, getSchema=body))


def get_or_create_schema(topic: str, request_id: int, schema: Schema) -> bytes:
    """The version of `schema` in a topic, registered if it is new."""
    body = CommandGetOrCreateSchema(request_id=request_id, topic=topic, schema=schema)
    return encode_command(BaseCommand(type=BaseCommand.GET_OR_CREATE_SCHEMA, getOrCreateSchema=body))


def watch_topic_list(
    namespace: str, topics_pattern: str, request_id: int, watcher_id: int, topics_hash: str | None = None
) -> bytes:
    """Tell me which topics of `namespace` match, and every change."""
    body = CommandWatchTopicList(
        request_id=request_id,
        watcher_id=watcher_id,
        namespace=namespace,
        topics_pattern=topics_pattern,
        topics_hash=topics_hash,
    )
    return encode_command(BaseCommand(type=BaseCommand.WATCH_TOPIC_LIST, watchTopicList=body))


def watch_topic_list_close(watcher_id: int, request_id: int) -> bytes:
    """No more changes, please."""
    body = CommandWatchTopicListClose(request_id=request_id, watcher_id=watcher_id)
    return encode_command(BaseCommand(type=BaseCommand.WATCH_TOPIC_LIST_CLOSE, watchTopicListClose=body))
