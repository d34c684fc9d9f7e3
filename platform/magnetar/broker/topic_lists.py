"""Which topics a namespace has, and who wants to know when that changes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Literal

from magnetar.broker.errors import InvalidTopic, NamespaceNotFound, NotAllowed
from magnetar.environment.logs import get_logger
from magnetar.metadata.store import Change, Notification
from magnetar.naming import NamespaceName, NamingError, TopicName
from magnetar.protocol.topic_lists import topics_hash

if TYPE_CHECKING:
    from magnetar.broker.context import BrokerContext
    from magnetar.broker.topics import TopicRegistry
    from magnetar.metadata.store import Watch

log = get_logger("magnetar.broker")

Mode = Literal["PERSISTENT", "NON_PERSISTENT", "ALL"]
Changed = Callable[[Sequence[str], Sequence[str], str], None]
"""Called with new topics, deleted topics, and the hash of all that match now."""

_UNBOUNDED_MAX: Final = 3
_CHOICES_MAX: Final = 10
_UNREADABLE: Final = re.compile(r"\?(#|[a-zA-Z-]*x)")
"""What may hide parts of an expression from who counts: comments, and the flag that allows them."""


class TopicPattern:
    """A regular expression over `tenant/namespace/topic`, without partition suffix.

    It comes from a client and runs on the broker's loop. Expressions that can take time without bound
    (repetition within repetition, more than three of them, or many choices one after the other) are refused: the
    client filters itself.
    """

    def __init__(self, text: str) -> None:
        """
        Raises:
            InvalidTopic: it is no regular expression.
            NotAllowed: it could take too long.
        """
        pattern = text.partition("://")[2] or text
        _check_cost(pattern)
        try:
            self._expression = re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise InvalidTopic(f"topic pattern {text!r} is no regular expression: {error}") from None

    def matching(self, topics: Iterable[str]) -> list[str]:
        return [topic for topic in topics if self._expression.fullmatch(_bare(topic))]


def _bare(topic: str) -> str:
    return str(TopicName.parse(topic).base).partition("://")[2]


def _check_cost(pattern: str) -> None:
    """Count what repeats and what may be one thing or another, and look for it inside a group that is itself repeated.

    Each choice doubles the ways to try: what may be left out counts as one, and so does a group of alternatives.
    """
    unbounded = choices = 0
    repeats_inside = [False]
    alternatives = [False]
    index = 0
    while index < len(pattern):
        character = pattern[index]
        if character == "\\":
            index += 2
            continue
        if character == "[":
            end = pattern.find("]", index + 2)
            index = len(pattern) if end < 0 else end + 1
            continue
        if character == "(":
            repeats_inside.append(False)
            alternatives.append(False)
            if _UNREADABLE.match(pattern, index + 1):
                raise NotAllowed(f"topic pattern {pattern!r} has comments: filter in the client")
            index += pattern.startswith("?", index + 1)
        elif character == "?":
            choices += 1
            repeats_inside[-1] = True
        elif character == ")" and len(repeats_inside) > 1:
            inside = repeats_inside.pop()
            choices += alternatives.pop()
            following = pattern[index + 1 : index + 2]
            if inside and following in ("*", "+", "{"):
                raise NotAllowed(f"topic pattern {pattern!r} repeats a repetition: filter in the client")
            repeats_inside[-1] |= inside
        elif character in "*+{|":
            unbounded += character != "|"
            alternatives[-1] |= character == "|"
            repeats_inside[-1] = True
        index += 1
    if unbounded > _UNBOUNDED_MAX:
        raise NotAllowed(
            f"topic pattern {pattern!r} has more than {_UNBOUNDED_MAX} repetitions: filter in the client"
        )
    if choices > _CHOICES_MAX:
        raise NotAllowed(
            f"topic pattern {pattern!r} has more than {_CHOICES_MAX} choices: filter in the client"
        )


class TopicListWatcher:
    """One client's wish to be told. It hears of nothing before `begin`, and misses nothing either."""

    def __init__(
        self, lists: TopicLists, namespace: NamespaceName, pattern: TopicPattern, changed: Changed
    ) -> None:
        self._lists = lists
        self._namespace = namespace
        self._pattern = pattern
        self._changed = changed
        self._watches: list[Watch] = []
        self._stale = False
        self._begun = False
        self._refreshing: asyncio.Task[None] | None = None
        self.cancelled = False
        self.topics: list[str] = []

    async def start(self) -> None:
        """Watch first, then list: nothing falls between. Raises NamespaceNotFound."""
        self._watches = self._lists.watch_namespace(self._namespace, self.notice)
        self._lists.watchers.append(self)
        self.topics = await self._list()

    def begin(self) -> None:
        """The first list has been sent: changes may follow."""
        self._begun = True
        if self._stale:
            self.notice()

    def notice(self) -> None:
        """Something may have changed."""
        self._stale = True
        if self._begun and not self.cancelled and self._refreshing is None:
            self._refreshing = self._lists.tasks.start(self._refresh(), "tell a change of topics")

    async def _refresh(self) -> None:
        try:
            while self._stale and not self.cancelled:
                self._stale = False
                topics = await self._list()
                before, now = set(self.topics), set(topics)
                new = [topic for topic in topics if topic not in before]
                deleted = [topic for topic in self.topics if topic not in now]
                self.topics = topics
                if (new or deleted) and not self.cancelled:
                    self._changed(new, deleted, topics_hash(topics))
        finally:
            self._refreshing = None

    async def _list(self) -> list[str]:
        return self._pattern.matching(await self._lists.topics(self._namespace, "PERSISTENT"))

    def cancel(self) -> None:
        self.cancelled = True
        for watch in self._watches:
            watch.cancel()
        if self in self._lists.watchers:
            self._lists.watchers.remove(self)


class TopicLists:
    """Lists topics, and watches them."""

    def __init__(self, context: BrokerContext, topics: TopicRegistry) -> None:
        self._context = context
        self._topics = topics
        self.tasks = context.tasks
        self.watchers: list[TopicListWatcher] = []

    async def topics(
        self, namespace: NamespaceName, mode: Mode = "PERSISTENT", *, system: bool = False
    ) -> list[str]:
        """Full names, sorted; partitioned topics appear as their partitions.

        Raises:
            NamespaceNotFound: it does not exist.
        """
        if await self._context.resources.namespace_policies(namespace) is None:
            raise NamespaceNotFound(f"namespace {namespace} does not exist: create it first")
        found: set[TopicName] = set()
        if mode in ("PERSISTENT", "ALL"):
            found.update(await self._stored(namespace))
        for loaded in self._topics.loaded():
            name = loaded.name
            if name.persistent and loaded.closing:
                continue  # It is stored, or is being deleted: who watches hears of that before it is gone from here.
            if name.namespace_name == namespace and (
                mode == "ALL" or name.persistent is (mode == "PERSISTENT")
            ):
                found.add(name)
        for base in await self._context.resources.list_partitioned(namespace):
            if mode == "ALL" or base.persistent is (mode == "PERSISTENT"):
                count = await self._context.resources.partitions(base) or 0
                found.update(base.partition_name(index) for index in range(count))
        return sorted(str(name) for name in found if system or not name.is_system)

    async def _stored(self, namespace: NamespaceName) -> list[TopicName]:
        from urllib.parse import unquote_plus

        names: list[TopicName] = []
        prefix = f"{namespace.tenant}/{namespace.local}/persistent/"
        for ledger_name in await self._context.ledgers.list(prefix.rstrip("/")):
            local = unquote_plus(ledger_name.rpartition("/")[2])
            try:
                names.append(TopicName("persistent", namespace.tenant, namespace.local, local))
            except NamingError:
                log.warning("topic.ignored", ledger=ledger_name, reason="its name cannot be a topic's")
        return names

    def watcher(self, namespace: NamespaceName, pattern: str, changed: Changed) -> TopicListWatcher:
        """One to be started, and begun when its first list has been sent.

        Raises:
            NotAllowed: the pattern is too long, or could take too long; the client polls instead.
            InvalidTopic: it is no regular expression.
        """
        limit = self._context.settings.pattern_length_max
        if len(pattern) > limit:
            raise NotAllowed(
                f"topic pattern of {len(pattern)} characters exceeds the limit of {limit}: poll instead"
            )
        return TopicListWatcher(self, namespace, TopicPattern(pattern), changed)

    def watch_namespace(self, namespace: NamespaceName, changed: Callable[[], None]) -> list[Watch]:
        """Hear of topics made and deleted, whichever broker serves them."""

        def heard(depth: int) -> Callable[[Notification], None]:
            def listener(notification: Notification) -> None:
                made_or_gone = notification.kind in (Change.CREATED, Change.DELETED)
                if made_or_gone and notification.path.count("/") == depth:
                    changed()

            return listener

        roots = (
            f"/managed-ledgers/{namespace.tenant}/{namespace.local}/persistent",
            f"/admin/partitioned-topics/{namespace.tenant}/{namespace.local}/persistent",
        )
        return [self._context.metadata.watch(root, heard(root.count("/") + 1)) for root in roots]
