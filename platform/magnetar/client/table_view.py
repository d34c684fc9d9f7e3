"""Table views: a topic as a dictionary of the last value of each key, kept up to date."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import TYPE_CHECKING

from magnetar.client.errors import AlreadyClosed, ClientError
from magnetar.environment.logs import get_logger
from magnetar.protocol.errors import ProtocolError

if TYPE_CHECKING:
    from magnetar.client.messages import MessageBatch
    from magnetar.client.reader import Reader

log = get_logger("magnetar.client")

Listener = Callable[[str, bytes | None], None]
"""Called with a key and its new value; None: it was deleted."""


class TableView(Mapping[str, bytes]):
    """Reads a topic from its beginning, compacted where it is, and goes on reading. Made by `Client.create_table_view`.

    It is a mapping of keys to payloads. Messages without a key do not count; one without payload deletes its key.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._values: dict[str, bytes] = {}
        self._listeners: list[Listener] = []
        self._following: asyncio.Task[None] | None = None
        self._failure: ClientError | None = None

    async def begin(self) -> None:
        """Read what there is now, then follow.

        Raises:
            ClientError: it cannot be read.
        """
        while await self._reader.has_message_available():
            batch = await self._reader.read_batch()
            if batch is None:
                break  # The topic is terminated.
            self._take(batch)
        self._following = asyncio.get_running_loop().create_task(
            self._follow(), name=f"table view of {self._reader.topic}"
        )

    async def refresh(self) -> None:
        """Wait until everything is taken in that the topic holds now.

        Raises:
            ClientError: it cannot be read any more.
        """
        wanted = {
            topic: last
            for topic, last in (await self._reader.get_last_message_ids()).items()
            if last.entry_id >= 0
        }
        while any(self._reader.position(topic) < last[:2] for topic, last in wanted.items()):
            self._check()
            await asyncio.sleep(0.005)

    async def _follow(self) -> None:
        try:
            while not self._reader.ended.is_set():
                batch = await self._reader.read_batch()
                if batch is not None:
                    self._take(batch)
        except AlreadyClosed:
            return
        except ClientError as error:
            self._failure = error
            log.error("table_view.ended", topic=self._reader.topic, reason=str(error))

    def _take(self, batch: MessageBatch) -> None:
        try:
            read = [(message.key, message.data or None) for message in batch.messages]
        except ProtocolError as error:  # As official clients do; or nothing after it would ever be known.
            log.error(
                "entry.unreadable", topic=batch.topic, message_id=str(batch.message_id), reason=str(error)
            )
            return
        for key, value in read:
            if key is None:
                continue
            if value is None:
                self._values.pop(key, None)
            else:
                self._values[key] = value
            for listener in list(self._listeners):
                self._tell(listener, key, value)

    def _tell(self, listener: Listener, key: str, value: bytes | None) -> None:
        try:
            listener(key, value)
        except Exception:  # The program's own: what is known goes on being kept up to date.
            log.exception("table_view.listener_failed", topic=self._reader.topic, key=key)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._reader.closed:
            raise AlreadyClosed(f"the table view of {self._reader.topic} is closed")

    # Looking.

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @property
    def topic(self) -> str:
        """What is read."""
        return self._reader.topic

    def __getitem__(self, key: str) -> bytes:
        return self._values[key]

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def keys(self) -> KeysView[str]:
        """The keys there are now."""
        return self._values.keys()

    def values(self) -> ValuesView[bytes]:
        """Their payloads."""
        return self._values.values()

    def items(self) -> ItemsView[str, bytes]:
        """Both."""
        return self._values.items()

    def for_each(self, action: Callable[[str, bytes], None]) -> None:
        """Call `action` with each key and value there is now."""
        for key, value in list(self._values.items()):
            action(key, value)

    def listen(self, listener: Listener) -> None:
        """Call `listener` with each change from now on, on the event loop."""
        self._listeners.append(listener)

    def for_each_and_listen(self, listener: Listener) -> None:
        """Both: nothing falls between."""
        self.for_each(listener)
        self.listen(listener)

    # Ending.

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._reader.closed

    async def close(self) -> None:
        """Follow no more. What is known stays readable."""
        await self._reader.close()
        if self._following is not None:
            await asyncio.wait([self._following])
