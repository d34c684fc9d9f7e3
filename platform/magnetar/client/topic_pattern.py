"""Subscriptions to all topics whose names match: those there are, and those that come to be.

The broker is asked to tell of changes, and the list is asked for anew when it does, when its connection is lost, and
every so often in any case: some brokers do not watch, or not this pattern.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from magnetar.client.errors import BrokerRefused, ClientError, InvalidUse
from magnetar.client.retry import until_answered
from magnetar.environment.logs import get_logger
from magnetar.naming import NamespaceName, TopicName
from magnetar.protocol import commands
from magnetar.protocol.pulsar_pb2 import CommandGetTopicsOfNamespace, CommandWatchTopicListSuccess

if TYPE_CHECKING:
    from magnetar.client.connection import Connection
    from magnetar.client.session import Session

log = get_logger("magnetar.client")

_AFTER_FAILURE_S: Final = 1.0

TopicsChanged = Callable[[list[TopicName], list[str]], Awaitable[None]]
"""Called with topics that are new and the names of those that are gone, also where there are none. What raises
ClientError is tried again."""


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """`[persistent://]tenant/namespace/expression`; without tenant and namespace, `public/default`'s.

    The expression must match the whole name, without scheme and partition suffix. Topics of one namespace only, of
    which neither tenant nor name may be an expression.
    """

    namespace: str
    expression: re.Pattern[str]
    persistent: bool

    @classmethod
    def parse(cls, pattern: re.Pattern[str]) -> TopicPattern:
        """
        Raises:
            InvalidUse: it does not begin with a namespace.
        """
        scheme, separator, rest = pattern.pattern.partition("://")
        if not separator:
            scheme, rest = "persistent", pattern.pattern
        pieces = rest.split("/", 2)
        if len(pieces) == 1 and not separator:
            pieces = ["public", "default", rest]
        try:
            if len(pieces) != 3 or scheme not in ("persistent", "non-persistent"):
                raise ValueError("it begins with no namespace")
            namespace = NamespaceName(pieces[0], pieces[1])
        except ValueError as error:
            raise InvalidUse(
                f"topic pattern {pattern.pattern!r}: {error}; write [persistent://]tenant/namespace/expression"
            ) from None
        expression = re.compile(f"{re.escape(str(namespace))}/(?:{pieces[2]})", pattern.flags)
        return cls(str(namespace), expression, scheme == "persistent")

    def matching(self, topics: Collection[str]) -> list[str]:
        """Those of `topics` that match, in order."""
        return [topic for topic in topics if self._matches(topic)]

    def _matches(self, topic: str) -> bool:
        name = TopicName.parse(topic)
        bare = str(name.base).partition("://")[2]
        return name.persistent is self.persistent and self.expression.fullmatch(bare) is not None


class TopicWatch:
    """Keeps somebody informed of the topics that match a pattern."""

    def __init__(
        self,
        session: Session,
        pattern: TopicPattern,
        every_s: float,
        known: Callable[[], Collection[str]],
        changed: TopicsChanged,
    ) -> None:
        """`known` tells the topics that are dealt with already."""
        self._session = session
        self._pattern = pattern
        self._every_s = every_s
        self._changed = changed
        self._known = known
        self._id = session.ids.consumer()
        self._news = asyncio.Event()
        self._connection: Connection | None = None
        self._refused = False

    async def begin(self) -> None:
        """Find what there is now, and tell it.

        Raises:
            ClientError: nobody answers, or what was told could not be dealt with.
        """
        try:
            await self._watch()
            await self._look()
        except BaseException:
            self._leave()  # Nobody will follow.
            raise

    async def follow(self) -> None:
        """Go on telling, until cancelled."""
        try:
            while True:
                wait_s = self._every_s
                try:
                    await self._watch()
                    async with asyncio.timeout(wait_s):
                        await self._news.wait()
                except TimeoutError:
                    log.debug("topics.looked_at", pattern=self._pattern.expression.pattern)
                except ClientError as error:
                    await self._failed(error)
                self._news.clear()
                try:
                    await self._look()
                except ClientError as error:
                    await self._failed(error)
                    self._news.set()
        finally:
            self._leave()

    async def _failed(self, error: ClientError) -> None:
        log.warning("topics.not_followed", pattern=self._pattern.expression.pattern, reason=str(error))
        await asyncio.sleep(min(_AFTER_FAILURE_S, self._every_s))

    async def _watch(self) -> None:
        """Ask the broker to tell of changes, unless it does already or will not."""
        if self._refused or not self._pattern.persistent or self._connection is not None:
            return
        lookup, ids = self._session.lookup, self._session.ids
        connection = await until_answered(self._session, lookup.service_connection)
        request_id = ids.request()
        frame = commands.watch_topic_list(
            self._pattern.namespace, self._pattern.expression.pattern, request_id, self._id
        )
        connection.watchers[self._id] = self
        try:
            await connection.request(
                request_id, frame, CommandWatchTopicListSuccess, self._session.settings.operation_timeout_s
            )
        except BrokerRefused as error:
            connection.watchers.pop(self._id, None)
            self._refused = not error.retriable
            log.info("topics.polled", pattern=self._pattern.expression.pattern, reason=str(error))
        except BaseException:
            connection.watchers.pop(self._id, None)
            if connection.usable:  # It may yet come about: take it back.
                connection.write(commands.watch_topic_list_close(self._id, ids.request()))
            raise
        else:
            self._connection = connection if connection.usable else None

    def on_change(self) -> None:
        """The broker says that something has changed."""
        self._news.set()

    def on_detached(self) -> None:
        """The connection is gone, and changes may have been missed."""
        self._connection = None
        self._news.set()

    async def _look(self) -> None:
        mode = (
            CommandGetTopicsOfNamespace.PERSISTENT
            if self._pattern.persistent
            else CommandGetTopicsOfNamespace.NON_PERSISTENT
        )
        lookup = self._session.lookup
        topics = await until_answered(self._session, lambda: lookup.topics(self._pattern.namespace, mode))
        now = self._pattern.matching(topics)
        before, there = set(self._known()), set(now)
        new = [TopicName.parse(topic) for topic in now if topic not in before]
        gone = [topic for topic in before if topic not in there]
        await self._changed(new, gone)

    def _leave(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and connection.watchers.pop(self._id, None) is not None:
            connection.write(commands.watch_topic_list_close(self._id, self._session.ids.request()))
