"""The brokers there are: this one's report, kept up to date, and those of the others, as they change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote

from magnetar.broker.cluster.report import BrokerReport
from magnetar.broker.errors import MetadataFailed
from magnetar.environment.logs import get_logger
from magnetar.metadata.errors import AlreadyExists, BadVersion, MetadataError, NotFound
from magnetar.metadata.store import MUST_NOT_EXIST, Notification, SessionState

if TYPE_CHECKING:
    from magnetar.metadata.store import MetadataStore, Watch

log = get_logger("magnetar.broker")

BROKERS_PATH: Final = "/loadbalance/brokers"
_RETRY_S: Final = 0.3

Changed = Callable[[BrokerReport | None, BrokerReport | None], None]
"""Called with another broker's report before and now; None: it was not there, or is not any more."""


class Members:
    """Registers this broker, and watches the others."""

    def __init__(
        self, metadata: MetadataStore, make_report: Callable[[], BrokerReport], changed: Changed
    ) -> None:
        self._metadata = metadata
        self._make_report = make_report
        self._changed = changed
        self._path = f"{BROKERS_PATH}/{quote(make_report().broker_id, safe=':')}"
        self._told: BrokerReport | None = None
        self._others: dict[str, BrokerReport] = {}
        self._stale: set[str] = set()
        self._watches: list[Watch] = []
        self._wake = asyncio.Event()
        self._publish_now = True
        self._left = False
        self._refreshing: asyncio.Task[None] | None = None
        self._publishing = asyncio.Lock()

    @property
    def others(self) -> list[BrokerReport]:
        """What the other brokers said last."""
        return list(self._others.values())

    def all(self) -> list[BrokerReport]:
        """Every broker, this one as it is now."""
        return [self._make_report(), *self._others.values()]

    def find(self, broker_id: str) -> BrokerReport | None:
        """Another broker, by its id."""
        return next((each for each in self._others.values() if each.broker_id == broker_id), None)

    async def join(self) -> None:
        """Register, and learn who else is there."""
        self._watches = [
            self._metadata.watch(BROKERS_PATH, self._heard),
            self._metadata.on_session(self._session_changed),
        ]
        await self.publish()
        self._publish_now = False
        await self._read_all()
        self._refreshing = asyncio.get_running_loop().create_task(self._refresh(), name="watch brokers")

    async def leave(self) -> None:
        """Be there no longer."""
        self._left = True
        for watch in self._watches:
            watch.cancel()
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.wait((self._refreshing,))
        try:
            record = await self._metadata.get(self._path)
            if record is not None and record.session == self._metadata.session_id:
                await self._metadata.delete(self._path, expected_version=record.version)
        except MetadataError as error:
            log.info("broker.report_left_behind", reason=str(error))

    async def publish(self) -> None:
        """Tell the others how this broker fares.

        Raises:
            MetadataError
        """
        async with self._publishing:
            report = self._make_report()
            value = report.encode()
            while not self._left:
                try:
                    await self._metadata.put(
                        self._path, value, expected_version=MUST_NOT_EXIST, ephemeral=True
                    )
                    break
                except AlreadyExists:
                    if await self._replaced(value):
                        break
            self._told = report

    async def _replaced(self, value: bytes) -> bool:
        """Write over our own record. One of an earlier life, or session, goes first: it would end with that."""
        record = await self._metadata.get(self._path)
        if record is None:
            return False
        try:
            if record.session == self._metadata.session_id:
                await self._metadata.put(self._path, value, expected_version=record.version)
                return True
            await self._metadata.delete(self._path, expected_version=record.version)
        except (BadVersion, NotFound) as error:
            log.info("broker.report_changed_meanwhile", reason=str(error))
        return False

    async def publish_news(self, *, load_too: bool) -> None:
        """Tell the others if there is something to tell."""
        report = self._make_report()
        told = self._told
        if not self._others and told is not None and report.draining == told.draining:
            return  # Nobody listens; whoever comes is told then.
        if report.tells_news(told) or (load_too and told is not None and report.load.differs_much(told.load)):
            await self.publish()

    # Hearing.

    def _heard(self, notification: Notification) -> None:
        self._stale.add(notification.path)
        self._wake.set()

    def _session_changed(self, state: SessionState) -> None:
        if state in (SessionState.CONNECTED, SessionState.REESTABLISHED):
            self._publish_now = True
            self._stale.add(BROKERS_PATH)
            self._wake.set()

    async def _refresh(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            stale, self._stale = self._stale, set()
            try:
                if self._publish_now:
                    await self.publish()
                    self._publish_now = False
                if BROKERS_PATH in stale:
                    await self._read_all()
                else:
                    for path in sorted(stale):
                        await self._read(path)
            except MetadataError as error:
                log.warning("brokers.not_read", reason=str(error))
                self._stale |= {BROKERS_PATH, *stale}
                await asyncio.sleep(_RETRY_S)
                self._wake.set()

    async def _read_all(self) -> None:
        names = await self._metadata.children(BROKERS_PATH)
        there = {f"{BROKERS_PATH}/{name}" for name in names}
        for path in sorted(there | set(self._others)):
            await self._read(path)

    async def _read(self, path: str) -> None:
        if path == self._path or not path.startswith(f"{BROKERS_PATH}/"):
            return
        record = await self._metadata.get(path)
        report: BrokerReport | None = None
        if record is not None:
            try:
                report = BrokerReport.decode(record.value)
            except MetadataFailed as error:
                log.warning("broker.report_ignored", broker=unquote(path), reason=str(error))
                return
        before = self._others.get(path)
        if report is None:
            self._others.pop(path, None)
        else:
            self._others[path] = report
        if report == before:
            return
        if before is not None and report is not None:
            if before.address.incarnation != report.address.incarnation:  # Gone and back between two looks.
                self._tell(before, None)
                self._tell(None, report)
                return
        elif report is not None:
            log.info("broker.joined", broker=report.broker_id, url=report.address.broker_url)
            self._publish_now = True
            self._wake.set()
        elif before is not None:
            log.info("broker.gone", broker=before.broker_id, bundles=len(before.bundles))
        self._tell(before, report)

    def _tell(self, before: BrokerReport | None, now: BrokerReport | None) -> None:
        try:
            self._changed(before, now)
        except Exception:  # Whatever a report says, the next ones must be heard.
            log.exception("broker.change_ignored", broker=(now or before or self._make_report()).broker_id)
