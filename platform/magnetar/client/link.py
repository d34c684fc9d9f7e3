"""A producer or consumer that stays attached to whichever broker serves its topic."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod

from magnetar.client.connection import Connection
from magnetar.client.errors import (
    AlreadyClosed,
    BrokerRefused,
    ClientError,
    ConnectionLost,
    OperationTimedOut,
)
from magnetar.client.retry import until_answered
from magnetar.client.session import Session
from magnetar.environment.logs import get_logger

log = get_logger("magnetar.client")


class TopicLink(ABC):
    """Looks the broker up, attaches, and does so again whenever it is let go.

    At most one task runs for a link, and only while it is detached.
    """

    def __init__(self, session: Session, topic: str) -> None:
        self.topic = topic
        self.session = session
        self.connection: Connection | None = None
        """Where the link is attached now."""
        self._loop = asyncio.get_running_loop()
        self._reconnecting: asyncio.Task[None] | None = None
        self._attached: asyncio.Event = asyncio.Event()
        self._attaching: Connection | None = None
        self._let_go = False  # Whether the broker let the link go while it was attaching.
        self._failure: ClientError | None = None
        """Why the link is of no more use."""

    async def open(self, *, in_time: bool = True) -> None:
        """Attach for the first time, within the operation's time-out unless not `in_time`.

        Raises:
            BrokerRefused: the broker does not want it.
            ConnectFailed, OperationTimedOut: no broker took it in time.
        """
        await until_answered(self.session, lambda: self._connect(None), in_time=in_time)

    async def attached(self) -> Connection:
        """Wait until the link is attached.

        Raises:
            AlreadyClosed: it was closed.
            ClientError: whatever made it useless.
            OperationTimedOut: no broker took it in time.
        """
        timeout_s = self.session.settings.operation_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                while self.connection is None:
                    self.check_usable()
                    await self._attached.wait()
        except TimeoutError:
            raise OperationTimedOut(f"{self._describe()}: not attached within {timeout_s:g} s") from None
        self.check_usable()
        return self.connection

    def check_usable(self) -> None:
        """Raise what made the link useless, if anything did."""
        if self._failure is not None:
            raise self._failure

    @property
    def closed(self) -> bool:
        """Whether the link is of no more use."""
        return self._failure is not None

    def on_detached(self, connection: Connection, url: str | None) -> None:
        """The connection is gone, or the broker let the link go; `url` names where to go instead."""
        if connection is self.connection:
            self.reattach(url)
        elif connection is self._attaching:
            self._let_go = True

    def reattach(self, url: str | None = None) -> None:
        """Give up the present attachment and look for a new one."""
        self.connection = None
        self._attached.clear()
        if self._failure is None:
            self._when_detached()
            if self._reconnecting is None:
                self._reconnecting = self._loop.create_task(
                    self._reconnect(url), name=f"reconnect {self._describe()}"
                )

    def give_up(self, error: ClientError) -> None:
        """Nothing more will come of this link."""
        if self._failure is None:
            self._failure = error
            self.connection = None
            self._attached.set()  # Whoever waits shall see the failure.
            self._when_given_up(error)

    async def stop(self) -> Connection | None:
        """Make the link useless and return where it was attached, so that it can say goodbye."""
        connection = self.connection
        self.give_up(AlreadyClosed(f"{self._describe()} is closed"))
        if self._reconnecting is not None:
            self._reconnecting.cancel()
            await asyncio.gather(self._reconnecting, return_exceptions=True)
        return connection

    async def _reconnect(self, url: str | None) -> None:
        backoff = self.session.backoff()
        while self._failure is None:
            await asyncio.sleep(backoff.next_delay())
            try:
                await self._connect(url)
                return
            except ClientError as error:
                if isinstance(error, AlreadyClosed) or (isinstance(error, BrokerRefused) and error.permanent):
                    log.error("link.given_up", link=self._describe(), reason=str(error))
                    self._reconnecting = None
                    self.give_up(error)
                    return
                log.warning("link.not_attached", link=self._describe(), reason=str(error))
            url = None

    async def _connect(self, url: str | None) -> None:
        lookup = self.session.lookup
        connection = await (lookup.connection_to(url) if url else lookup.connection_for(self.topic))
        self._attaching, self._let_go = connection, False
        try:
            await self._attach(connection)
        finally:
            self._attaching = None
        if self._let_go:
            raise ConnectionLost(f"{connection.address} let {self._describe()} go while it was attaching")
        # No await from here on: a loss of the connection now finds the link attached, and tells it.
        self._reconnecting = None
        self.connection = connection
        if self._failure is None:
            self._attached.set()
            self._when_attached(connection)

    @abstractmethod
    async def _attach(self, connection: Connection) -> None:
        """Say PRODUCER or SUBSCRIBE, and wait for the answer."""

    @abstractmethod
    def _when_attached(self, connection: Connection) -> None:
        """Send what has waited."""

    def _when_detached(self) -> None:
        """Forget what was of the lost attachment."""

    @abstractmethod
    def _when_given_up(self, error: ClientError) -> None:
        """Fail what will never come."""

    @abstractmethod
    def _describe(self) -> str:
        """The link's kind, topic and name, for messages."""
