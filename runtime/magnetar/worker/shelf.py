"""Packages where every worker finds them: each in a topic of its own, in pieces.

A subscription keeps a topic's messages for ever; the last message says how many pieces there are, so that what a
crashed upload has left is told from a whole package.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Final

from magnetar.environment.logs import get_logger
from magnetar.worker.broker_admin import BrokerAdmin
from magnetar.worker.component import Package
from magnetar.worker.errors import PlatformUnavailable
from magnetar.worker.packages import PackageStore, Upload

if TYPE_CHECKING:
    from magnetar.client import Client

TENANT: Final = "public"
NAMESPACE: Final = "functions"
PREFIX: Final = f"persistent://{TENANT}/{NAMESPACE}/package-"
KEPT_BY: Final = "workers"
PIECE_BYTES: Final = 1024 * 1024
PIECE: Final = "piece"
PIECES: Final = "pieces"
FETCH_TIMEOUT_S: Final = 60.0

log = get_logger("magnetar.worker.shelf")


class Shelf:
    """Puts packages up for the other workers, and takes theirs."""

    def __init__(
        self, packages: PackageStore, admin: BrokerAdmin, client: Callable[[], Awaitable[Client]]
    ) -> None:
        self._packages = packages
        self._admin = admin
        self._client = client

    async def put(self, package: Package) -> None:
        """Store a package of ours for the others. Raises PlatformUnavailable."""
        topic = PREFIX + package.sha256
        await self._admin.create_subscription(topic, KEPT_BY)
        producer = await (await self._client()).create_producer(topic, batching=False)
        try:
            number = 0
            with await asyncio.to_thread(self._packages.path(package).open, "rb") as file:
                while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
                    await producer.send(piece, properties={PIECE: str(number)})
                    number += 1
            await producer.send(b"", properties={PIECES: str(number)})
        finally:
            await producer.close()
        log.info("package.shared", package=package.filename, sha256=package.sha256, pieces=number)

    async def fetch(self, package: Package) -> None:
        """Make a package ours. Raises PlatformUnavailable: it is not there, or not whole."""
        if await asyncio.to_thread(self._packages.path(package).exists):
            return
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_S):
                await self._read(package)
        except TimeoutError as error:
            raise PlatformUnavailable(
                f"package {package.filename} of another worker is not whole in {PREFIX}{package.sha256}: "
                f"upload it again"
            ) from error
        log.info("package.fetched", package=package.filename, sha256=package.sha256)

    async def _read(self, package: Package) -> None:
        from magnetar.protocol.ids import MessageId

        reader = await (await self._client()).create_reader(PREFIX + package.sha256, MessageId.EARLIEST)
        upload: Upload | None = None
        expected = 0
        try:
            while True:
                message = await reader.read()
                assert message is not None  # These topics are never terminated.
                if message.properties.get(PIECE) == "0":  # What came before was cut short.
                    if upload is not None:
                        await upload.discard()
                    upload, expected = self._packages.begin(package.filename), 0
                if upload is not None and message.properties.get(PIECES) == str(expected):
                    break
                if upload is not None and message.properties.get(PIECE) == str(expected):
                    await upload.write(message.data)
                    expected += 1
            found = await upload.finish()
            if found.sha256 != package.sha256:
                raise PlatformUnavailable(f"package {package.filename} came back other than it was stored")
        finally:
            if upload is not None:
                await upload.discard()
            await reader.close()

    async def remove_unused(self, used: Collection[str]) -> None:
        """Drop what no component names."""
        for topic in await self._admin.topics(TENANT, NAMESPACE):
            if topic.startswith(PREFIX) and topic.removeprefix(PREFIX) not in used:
                await self._admin.delete_topic(topic)
