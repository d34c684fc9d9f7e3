"""A proxy that passes frames on between client and broker until it feels like cutting every connection.

It rewrites lookups so that clients stay behind it, and cuts between frames or in the middle of one, in
either direction: whatever a network may do to a connection short of altering bytes.
"""

from __future__ import annotations

import asyncio
from random import Random

from magnetar.protocol.frames import Frame, FrameDecoder, encode_command, encode_payload_command
from magnetar.protocol.pulsar_pb2 import BaseCommand


class ChaosProxy:
    """Listens on a port of its own; `calm` it to let a test come to its end."""

    def __init__(self, broker_port: int, random: Random, *, frames_between_cuts: tuple[int, int]) -> None:
        self._broker_port = broker_port
        self._random = random
        self._between = frames_between_cuts
        self._left = random.randint(*frames_between_cuts)
        self._writers: set[asyncio.StreamWriter] = set()
        self._links: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.url = ""
        self.cuts = 0
        self.calm = False

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._link, "127.0.0.1", 0)
        self.url = f"pulsar://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self._cut_all()
        await asyncio.gather(*self._links, return_exceptions=True)

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        task.add_done_callback(self._links.discard)
        try:
            to_broker, from_broker = await asyncio.open_connection("127.0.0.1", self._broker_port)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, from_broker}
        await asyncio.gather(self._pass(reader, from_broker), self._pass(to_broker, writer))
        self._writers -= {writer, from_broker}

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        decoder = FrameDecoder()
        try:
            while data := await source.read(65536):
                for frame in decoder.feed(data):
                    encoded = self._encoded(frame)
                    if self._cuts_now():
                        target.write(encoded[: self._random.randint(0, len(encoded))])
                        await target.drain()
                        self._cut_all()
                        return
                    target.write(encoded)
                await target.drain()
        except OSError:
            return
        finally:
            target.close()

    def _encoded(self, frame: Frame) -> bytes:
        command = frame.command
        if command.type == BaseCommand.LOOKUP_RESPONSE and command.lookupTopicResponse.brokerServiceUrl:
            command.lookupTopicResponse.brokerServiceUrl = self.url
        if frame.payload is not None:
            return b"".join(encode_payload_command(command, [frame.payload]))
        return encode_command(command)

    def _cuts_now(self) -> bool:
        self._left -= 1
        if self.calm or self._left > 0:
            return False
        self._left = self._random.randint(*self._between)
        self.cuts += 1
        return True

    def _cut_all(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
