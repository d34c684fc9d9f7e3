"""Whether another broker answers: asked before clients are sent to it.

A broker that was killed keeps its bundles until its session ends. Clients sent there meanwhile are refused, and
back off for longer than the rest of the fail-over takes. So each broker keeps one connection to every broker it
sends clients to: a killed process is known by its reset within a round trip, a stopped one by its silence.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from magnetar.environment.logs import get_logger
from magnetar.protocol import commands
from magnetar.protocol.errors import FrameError
from magnetar.protocol.frames import FrameDecoder
from magnetar.protocol.pulsar_pb2 import BaseCommand

if TYPE_CHECKING:
    from collections.abc import Callable

log = get_logger("magnetar.broker")

ANSWER_WITHIN_S: Final = 0.7
_GOOD_FOR_S: Final = 0.3
"""How long an answer counts while the connection stays; without it, at once for nothing."""
_SILENT_FOR_S: Final = 0.2
"""How long a failure counts."""
_NAME: Final = "Magnetar-broker"


class _Line(asyncio.Protocol):
    """A connection to one broker."""

    def __init__(self) -> None:
        self.closed = False
        self.answered = asyncio.Event()
        self._decoder = FrameDecoder()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's are not instances of it.
        self._write(commands.connect(_NAME))

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._decoder.feed(data):
                if frame.type == BaseCommand.PING:
                    self._write(commands.pong())
                else:
                    self.answered.set()
        except FrameError as error:
            log.warning("probe.misunderstood", reason=str(error))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self.answered.set()

    def ask(self) -> None:
        self.answered.clear()
        self._write(commands.ping())

    def close(self) -> None:
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    def _write(self, frame: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame)


class Probes:
    """One line to each broker that was asked about."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._lines: dict[str, _Line] = {}
        self._verdicts: dict[str, tuple[bool, float]] = {}
        self._asking: dict[str, asyncio.Task[bool]] = {}

    async def answers(self, url: str) -> bool:
        """Whether the broker at `pulsar://host:port` answers within a moment."""
        line = self._lines.get(url)
        answered, at = self._verdicts.get(url, (False, float("-inf")))
        now = self._monotonic()
        if answered and line is not None and not line.closed and now - at < _GOOD_FOR_S:
            return True
        if not answered and now - at < _SILENT_FOR_S:
            return False
        asking = self._asking.get(url)
        if asking is None:
            asking = asyncio.get_running_loop().create_task(self._ask(url), name=f"probe {url}")
            self._asking[url] = asking
            asking.add_done_callback(lambda _: self._asking.pop(url, None))
        return await asyncio.shield(asking)

    async def _ask(self, url: str) -> bool:
        before = self._verdicts.get(url, (True, 0.0))[0]
        answered = False
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                line = await self._line(url)
                await line.answered.wait()
                answered = not line.closed
        except (TimeoutError, OSError, ValueError) as error:
            if before:
                log.info("broker.silent", url=url, reason=f"{type(error).__name__} {error}".strip())
        if not answered:
            self.forget(url)
        self._verdicts[url] = (answered, self._monotonic())
        return answered

    async def _line(self, url: str) -> _Line:
        line = self._lines.get(url)
        if line is not None and not line.closed:
            line.ask()
            return line
        place = urlsplit(url)
        if not place.hostname or not place.port:
            raise ValueError(f"no address: {url!r}")
        _, line = await asyncio.get_running_loop().create_connection(_Line, place.hostname, place.port)
        self._lines[url] = line
        return line

    def forget(self, url: str) -> None:
        """Close the line to a broker."""
        line = self._lines.pop(url, None)
        if line is not None:
            line.close()

    def close(self) -> None:
        for asking in list(self._asking.values()):
            asking.cancel()
        for url in list(self._lines):
            self.forget(url)
