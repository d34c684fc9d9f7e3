"""Making a bookie known: its cookie, which ties its id to one data directory, and its ephemeral registration.

/ledgers/cookies/<id>      {"version": 1, "instance_id": …}                       stays
/ledgers/available/<id>    {"version": 1, "address": …, "incarnation": …, "read_only": …}   while the session lives
/ledgers/readonly_wanted/<id>   there while an operator wants the bookie read-only
"""

from __future__ import annotations

import asyncio
import json
import uuid

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.errors import BookieAlreadyRegistered, CookieMismatch
from magnetar.environment.logs import get_logger
from magnetar.metadata.errors import AlreadyExists, BadVersion, MetadataError, NotFound
from magnetar.metadata.store import (
    MUST_NOT_EXIST,
    Change,
    MetadataStore,
    Notification,
    SessionState,
    Watch,
)
from magnetar.protocol.bookie import (
    AVAILABLE_PATH,
    COOKIES_PATH,
    READ_ONLY_WANTED_PATH,
    REGISTRATION_VERSION,
    BookieAddress,
)

_POLL_S = 0.5
_BACKOFF_MAX_S = 15.0

log = get_logger("magnetar.bookie.registration")


async def set_read_only(metadata: MetadataStore, bookie_id: str, wanted: bool) -> None:
    """Have a bookie take no ordinary adds, or take them again: now if it runs, and whenever it starts."""
    path = f"{READ_ONLY_WANTED_PATH}/{bookie_id}"
    if wanted:
        await metadata.put(path, json.dumps({"version": REGISTRATION_VERSION}).encode())
        return
    try:
        await metadata.delete(path)
    except NotFound:
        log.info("bookie.read_only_was_not_wanted", bookie=bookie_id)


async def read_only_wanted(metadata: MetadataStore) -> set[str]:
    """The bookies an operator has made read-only."""
    return set(await metadata.children(READ_ONLY_WANTED_PATH))


class BookieRegistration:
    """Registers one running bookie and keeps it registered through lost sessions."""

    def __init__(
        self, metadata: MetadataStore, bookie: Bookie, address: str, *, old_session_wait_s: float = 40.0
    ) -> None:
        """
        Args:
            address: `host:port` under which clients of other processes reach the bookie.
            old_session_wait_s: how long an earlier process's registration is waited for to expire.
        """
        self._metadata = metadata
        self._bookie = bookie
        self._address = address
        self._old_session_wait_s = old_session_wait_s
        self._incarnation = str(uuid.uuid4())
        self._path = f"{AVAILABLE_PATH}/{bookie.bookie_id}"
        self._wanted_path = f"{READ_ONLY_WANTED_PATH}/{bookie.bookie_id}"
        self._watches: list[Watch] = []
        self._repair: asyncio.Task[None] | None = None
        self._again = False
        self._stopping = False
        self.registered = False

    async def check_cookie(self) -> None:
        """Make sure that this directory is the one the cluster knows the bookie by: before it answers anyone.

        Raises:
            CookieMismatch: an empty or swapped directory, or another cluster's.
        """
        bookie_id, instance = self._bookie.bookie_id, self._bookie.instance_id
        path = f"{COOKIES_PATH}/{bookie_id}"
        record = await self._metadata.get(path)
        if record is None:
            if self._bookie.ledgers():
                raise CookieMismatch(
                    bookie_id,
                    "its data directory holds ledgers, but this cluster does not know it: it belongs to another cluster",
                )
            value = json.dumps({"version": REGISTRATION_VERSION, "instance_id": instance}).encode()
            try:
                await self._metadata.put(path, value, expected_version=MUST_NOT_EXIST)
                return
            except AlreadyExists:
                record = await self._metadata.get(path)
        known = _instance_of(record.value) if record is not None else None
        if known != instance:
            raise CookieMismatch(
                bookie_id,
                f"the cluster knows it with data directory {known}, this one is {instance}: the disk was emptied or"
                f" swapped. Bring it back, or give the bookie another id and let its ledgers be re-replicated",
            )

    async def start(self) -> None:
        """Check the cookie and register.

        Raises:
            CookieMismatch
            BookieAlreadyRegistered: another living session holds the id.
        """
        await self.check_cookie()
        self._watches = [
            self._metadata.watch(self._path, self._on_change),
            self._metadata.watch(self._wanted_path, self._on_change),
            self._metadata.on_session(self._on_session),
        ]
        await self._follow_wish()
        await self._register()
        self._bookie.on_mode_change = self._repair_soon

    async def stop(self) -> None:
        """Deregister: no new ensemble will name this bookie."""
        self._stopping = True
        self._bookie.on_mode_change = None
        for watch in self._watches:
            watch.cancel()
        if self._repair is not None:
            self._repair.cancel()
            await asyncio.gather(self._repair, return_exceptions=True)
        if not self.registered:
            return
        self.registered = False
        try:
            record = await self._metadata.get(self._path)
            if record is not None and record.session == self._metadata.session_id:
                await self._metadata.delete(self._path, expected_version=record.version)
        except (NotFound, BadVersion):
            log.info("bookie.registration_was_gone", bookie=self._bookie.bookie_id)
        except MetadataError as error:  # The session will end it.
            log.warning("bookie.not_deregistered", bookie=self._bookie.bookie_id, reason=str(error))

    def _value(self) -> bytes:
        bookie = self._bookie
        return BookieAddress(
            self._address,
            self._incarnation,
            bookie.read_only,
            bookie.settings.domain,
            bookie.settings.rack,
            bookie.free_bytes,
            bookie.total_bytes,
        ).encode()

    async def _follow_wish(self) -> None:
        """An operator's wish outlives process and session: it is asked for whenever either begins, and watched."""
        wanted = await self._metadata.get(self._wanted_path) is not None
        self._bookie.set_read_only("wanted", "an operator wants it so" if wanted else None)

    async def _register(self) -> None:
        """Put the record, waiting for an older session's to expire; bring ours up to date."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._old_session_wait_s
        while True:
            value = self._value()
            try:
                await self._metadata.put(self._path, value, expected_version=MUST_NOT_EXIST, ephemeral=True)
                break
            except AlreadyExists:
                record = await self._metadata.get(self._path)
            if record is None:
                continue
            if record.session == self._metadata.session_id:
                if record.value != value:
                    await self._metadata.put(self._path, value, expected_version=record.version)
                break
            if loop.time() >= deadline:
                raise BookieAlreadyRegistered(self._bookie.bookie_id)
            await asyncio.sleep(_POLL_S)
        self.registered = True
        log.info("bookie.registered", bookie=self._bookie.bookie_id, address=self._address)

    def _on_change(self, notification: Notification) -> None:
        gone = notification.path == self._path and notification.kind is Change.DELETED
        if gone or notification.path == self._wanted_path:
            self._repair_soon()

    def _on_session(self, state: SessionState) -> None:
        if state is SessionState.EXPIRED:
            self.registered = False
            log.warning("bookie.registration_lost", bookie=self._bookie.bookie_id)
        elif state is SessionState.CONNECTED:
            self._repair_soon()

    def _repair_soon(self) -> None:
        """Register again in the background; the bookie serves meanwhile."""
        if self._stopping:
            return
        self._again = True
        if self._repair is None or self._repair.done():
            self._repair = asyncio.get_running_loop().create_task(self._keep_registered())

    async def _keep_registered(self) -> None:
        delay = _POLL_S
        while self._again:
            self._again = False
            try:
                await self._follow_wish()
                await self._register()
                delay = _POLL_S
            except (MetadataError, BookieAlreadyRegistered) as error:
                log.warning(
                    "bookie.not_registered",
                    bookie=self._bookie.bookie_id,
                    reason=str(error),
                    again_in_s=delay,
                )
                self._again = True
                await asyncio.sleep(delay)
                delay = min(2 * delay, _BACKOFF_MAX_S)


def _instance_of(value: bytes) -> str | None:
    try:
        return str(json.loads(value)["instance_id"])
    except (ValueError, KeyError, TypeError):
        return None
