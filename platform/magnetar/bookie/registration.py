"""Making a bookie known: its cookie, which ties its id to one data directory, and its ephemeral registration.

/ledgers/cookies/<id>      {"version": 1, "instance_id": …, "sequence": …, "sequences": …}     stays
/ledgers/available/<id>    {"version": 1, "address": …, "incarnation": …, "read_only": …}   while the session lives
/ledgers/readonly_wanted/<id>   there while an operator wants the bookie read-only
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Mapping

from magnetar.bookie.errors import BookieAlreadyRegistered, CookieMismatch
from magnetar.bookie.several import AnyBookie
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
_SEQUENCE_S = 10.0

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
        self, metadata: MetadataStore, bookie: AnyBookie, address: str, *, old_session_wait_s: float = 40.0
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
        self._cookie_path = f"{COOKIES_PATH}/{bookie.bookie_id}"
        self._cookie_version = MUST_NOT_EXIST
        self._told: Mapping[str, int] = {}
        """The sequences that metadata knows of."""
        self._sequence_timer: asyncio.TimerHandle | None = None
        self._wanted_path = f"{READ_ONLY_WANTED_PATH}/{bookie.bookie_id}"
        self._watches: list[Watch] = []
        self._repair: asyncio.Task[None] | None = None
        self._again = False
        self._stopping = False
        self.registered = False

    async def check_cookie(self) -> None:
        """Make sure that this directory is the one the cluster knows the bookie by: before it answers anyone.

        Where it is not, and `on_lost_data` allows it, the bookie is in limbo afterwards: `Integrity.prepare` is next.

        Raises:
            CookieMismatch: an empty, swapped or older directory, or another cluster's.
        """
        bookie = self._bookie
        record = await self._metadata.get(self._cookie_path)
        if record is None:
            if bookie.ledgers():
                raise CookieMismatch(
                    bookie.bookie_id,
                    "its data directory holds ledgers, but this cluster does not know it: it belongs to another cluster",
                )
            try:
                await self._tell_sequences()
                return
            except AlreadyExists:
                record = await self._metadata.get(self._cookie_path)
        self._cookie_version = record.version if record is not None else MUST_NOT_EXIST
        known, sequences = _decode_cookie(record.value) if record is not None else (None, {})
        if known != bookie.instance_id:
            await self._accept_loss(
                f"the cluster knows it with data directory {known}, this one is {bookie.instance_id}: the disk was"
                f" emptied or swapped",
                may_go_on=not bookie.ledgers(),
            )
        elif reason := self._what_is_older(sequences):
            await self._accept_loss(reason, may_go_on=True)
        await self._tell_sequences()

    def _what_is_older(self, sequences: Mapping[str, int]) -> str | None:
        """Whether a directory is not what it was when it was last heard of."""
        found = self._bookie.first_sequences
        for instance_id, reached in sequences.items():
            if instance_id not in found:
                return f"its directory {instance_id} is not there any more"
            if reached > max(
                found[instance_id], self._told.get(instance_id, 0)
            ):  # Not what this start has told.
                return (
                    f"its journal ends at record {found[instance_id]}, but {reached} had been reached: the directory is"
                    f" an older copy, or has lost the end of its journal"
                )
        return None

    async def _accept_loss(self, reason: str, *, may_go_on: bool) -> None:
        bookie = self._bookie
        if bookie.limbo.reason is not None and may_go_on:
            return  # It is known already, from what the start has found.
        if bookie.settings.on_lost_data != "limbo":
            raise CookieMismatch(
                bookie.bookie_id,
                f"{reason}. Bring it back; or start with `on_lost_data: limbo`, and the bookie gets what it should hold"
                f" from its peers; or give it another id and let its ledgers be re-replicated",
            )
        if not may_go_on:
            raise CookieMismatch(
                bookie.bookie_id,
                f"{reason}, and this one holds ledgers of its own. Format it (`magnetar bookie format`) to have it filled"
                f" from its peers",
            )
        await self._nobody_else()
        await bookie.enter_limbo(reason)

    async def _nobody_else(self) -> None:
        """Wait for an earlier process's registration to expire: the cookie may not be taken from a living bookie."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._old_session_wait_s
        while True:
            record = await self._metadata.get(self._path)
            if record is None or record.session == self._metadata.session_id:
                return
            if loop.time() >= deadline:
                raise BookieAlreadyRegistered(self._bookie.bookie_id)
            await asyncio.sleep(_POLL_S)

    async def _renew_cookie(self) -> None:
        try:
            await self._tell_sequences()
        except BadVersion:
            record = await self._metadata.get(self._cookie_path)
            if record is None or _decode_cookie(record.value)[0] != self._bookie.instance_id:
                log.error("bookie.cookie_is_not_ours_any_more", bookie=self._bookie.bookie_id)
                self._told = self._bookie.sequences
                return
            self._cookie_version = record.version  # An answer was lost, or an operator was here.
            await self._tell_sequences()

    async def _tell_sequences(self) -> None:
        """Note in metadata how far the journals have come: no copy of a directory from before passes for it."""
        sequences = self._bookie.sequences
        instance_id = self._bookie.instance_id
        fields: dict[str, object] = {
            "version": REGISTRATION_VERSION,
            "instance_id": instance_id,
            "sequence": sequences[instance_id],
        }
        if len(sequences) > 1:
            fields["sequences"] = sequences
        self._cookie_version = await self._metadata.put(
            self._cookie_path, json.dumps(fields).encode(), expected_version=self._cookie_version
        )
        self._told = sequences

    async def start(self) -> None:
        """Check the cookie and register.

        Raises:
            CookieMismatch: also where the bookie is in limbo, and nobody has fenced yet what may have lost its fence.
            BookieAlreadyRegistered: another living session holds the id.
        """
        await self.check_cookie()
        if not self._bookie.may_be_registered:
            raise CookieMismatch(
                self._bookie.bookie_id, "it has lost fences, and its ledgers were not fenced again yet"
            )
        self._watches = [
            self._metadata.watch(self._path, self._on_change),
            self._metadata.watch(self._wanted_path, self._on_change),
            self._metadata.on_session(self._on_session),
        ]
        await self._follow_wish()
        await self._register()
        self._bookie.on_mode_change = self._repair_soon
        self._look_again()

    async def stop(self) -> None:
        """Deregister: no new ensemble will name this bookie."""
        self._stopping = True
        self._bookie.on_mode_change = None
        if self._sequence_timer is not None:
            self._sequence_timer.cancel()
        for watch in self._watches:
            watch.cancel()
        if self._repair is not None:
            self._repair.cancel()
            await asyncio.gather(self._repair, return_exceptions=True)
        if not self.registered:
            return
        self.registered = False
        try:
            if self._bookie.sequences != self._told:
                await self._renew_cookie()
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

    def _look_again(self) -> None:
        """Of what is written metadata hears within seconds, and of an idle bookie nothing."""
        self._sequence_timer = asyncio.get_running_loop().call_later(_SEQUENCE_S, self._look_again)
        if self._bookie.sequences != self._told:
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
                if self._bookie.sequences != self._told:
                    await self._renew_cookie()
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


def _decode_cookie(value: bytes) -> tuple[str | None, dict[str, int]]:
    """Whose directories they are, and how far the journal of each had come at least."""
    try:
        fields = json.loads(value)
        instance_id = str(fields["instance_id"])
        sequences = fields.get("sequences") or {instance_id: fields.get("sequence", 0)}
        return instance_id, {str(name): int(reached) for name, reached in sequences.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return None, {}
