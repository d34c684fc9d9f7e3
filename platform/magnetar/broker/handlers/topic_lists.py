"""The topics of a namespace, once or for as long as a client watches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from magnetar.broker.errors import NamespaceNotFound, NotAllowed
from magnetar.broker.topic_lists import Mode, TopicPattern
from magnetar.environment.logs import get_logger
from magnetar.naming import NamespaceName
from magnetar.protocol import commands
from magnetar.protocol.pulsar_pb2 import (
    CommandGetTopicsOfNamespace,
    CommandWatchTopicList,
    CommandWatchTopicListClose,
)
from magnetar.protocol.topic_lists import topics_hash

if TYPE_CHECKING:
    from magnetar.broker.connection import Connection

log = get_logger("magnetar.broker")

_MODES: Final[dict[int, Mode]] = {
    CommandGetTopicsOfNamespace.PERSISTENT: "PERSISTENT",
    CommandGetTopicsOfNamespace.NON_PERSISTENT: "NON_PERSISTENT",
    CommandGetTopicsOfNamespace.ALL: "ALL",
}


async def topics_of_namespace(connection: Connection, command: CommandGetTopicsOfNamespace) -> None:
    """List topics; those of a pattern, where it is short enough to be evaluated here.

    A namespace that is not there has none: an error would make clients ask until they give up.
    Source: Pulsar NamespaceService.getListOfTopics.
    """
    namespace = NamespaceName.parse(command.namespace)
    try:
        topics = await connection.broker.topic_lists.topics(namespace, _MODES[command.mode])
    except NamespaceNotFound:
        topics = []
    filtered = False
    if command.topics_pattern and len(command.topics_pattern) <= connection.settings.pattern_length_max:
        try:
            topics = TopicPattern(command.topics_pattern).matching(topics)
            filtered = True
        except NotAllowed as error:
            log.info("topic_pattern.left_to_the_client", pattern=command.topics_pattern, reason=str(error))
    digest = topics_hash(topics)
    changed = digest != command.topics_hash
    connection.send_claim(
        commands.topics_of_namespace(
            command.request_id,
            topics if changed else (),
            topics_hash=digest,
            filtered=filtered,
            changed=changed,
        )
    )


async def watch(connection: Connection, command: CommandWatchTopicList) -> None:
    """Tell which topics match, and from now on what changes."""
    before = connection.watchers.pop(command.watcher_id, None)
    if before is not None:
        before.cancel()
    watcher = connection.broker.topic_lists.watcher(
        NamespaceName.parse(command.namespace),
        command.topics_pattern,
        lambda new, deleted, digest: connection.send_claim(
            commands.watch_topic_update(command.watcher_id, new, deleted, digest)
        ),
    )
    connection.watchers[command.watcher_id] = (
        watcher  # At once: it may be closed, or replaced, before it has a list.
    )
    try:
        await watcher.start()
    except BaseException:
        watcher.cancel()
        if connection.watchers.get(command.watcher_id) is watcher:
            del connection.watchers[command.watcher_id]
        raise
    if not connection.open:
        watcher.cancel()
        return
    digest = topics_hash(watcher.topics)
    topics = () if digest == command.topics_hash else watcher.topics
    connection.send_claim(
        commands.watch_topic_list_success(command.request_id, command.watcher_id, topics, digest)
    )
    watcher.begin()


def close_watcher(connection: Connection, command: CommandWatchTopicListClose, _: memoryview | None) -> None:
    watcher = connection.watchers.pop(command.watcher_id, None)
    if watcher is not None:
        watcher.cancel()
    connection.send(commands.success(command.request_id))
