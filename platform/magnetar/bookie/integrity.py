"""Out of limbo: what metadata says a bookie should hold is fetched from its peers until nothing is missing.

    prepare    before the bookie is registered: every ledger whose last fragment names it is fenced, for it may have been
    check      each of them is compared with what is here; what is missing is fetched, verified and added
    the end    when all were looked at once without an error, and no sleeping writer can have kept a connection

What no peer has stays missing: its ledger is reported and remains in limbo, and so does one whose end nobody knows yet;
the others do not wait for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from magnetar.bookie.reads import ReadFailed
from magnetar.bookie.several import AnyBookie
from magnetar.environment.logs import get_logger
from magnetar.protocol.bookie import BookieStatus
from magnetar.protocol.ledger_entry import ENTRY_HEADER, ENTRY_HEADER_BYTES, entry_digest_matches

_RETRY_S = 10.0
_BACKOFF = 60
"""So many times that at most: what no peer had ten seconds ago it hardly has now, and each look is at all of metadata."""
_LOOK_S = 30.0
_FENCES_AT_ONCE = 1000

log = get_logger("magnetar.bookie.integrity")


@dataclass(frozen=True, slots=True)
class Holdings:
    """What metadata says of a ledger and this bookie."""

    ranges: Sequence[tuple[int, int]]
    """Entries it should hold, inclusive and rising: those of closed fragments."""
    settled: bool = True
    """False: the bookie is in the last fragment of a ledger that is not closed, so there may be more."""
    master_key: bytes = b""
    """Empty: not known."""


class Peers(Protocol):
    """What a bookie has to be told, for it knows neither metadata nor other bookies."""

    async def ledgers(self) -> set[int]:
        """All ledgers of which any fragment names this bookie. Raises if the answer could be incomplete."""
        ...

    async def fenceable(self) -> set[int]:
        """Those of which the last fragment names it. Raises if the answer could be incomplete."""
        ...

    async def holdings(self, ledger_id: int) -> Holdings | None:
        """None: the ledger is gone. Raises if that could not be found out."""
        ...

    async def fetch(self, ledger_id: int, entry_id: int) -> bytes | None:
        """The stored form of an entry, from any other bookie. None: all of them say, or let fear, that they have not got it."""
        ...


@dataclass(slots=True)
class IntegrityReport:
    """What one check has found."""

    ledgers: int = 0
    fetched: int = 0
    lost: dict[int, int] = field(default_factory=dict)
    """Entries that no peer has now, by ledger."""
    unsettled: set[int] = field(default_factory=set)
    """Ledgers whose end is not known yet: a recovery will close them."""


class Integrity:
    """Belongs to the loop of its bookie."""

    def __init__(
        self, bookie: AnyBookie, peers: Peers, *, retry_s: float = _RETRY_S, look_s: float = _LOOK_S
    ) -> None:
        """`look_s`: how soon it notices that an index was built anew and lacks something."""
        self._bookie = bookie
        self._peers = peers
        self._retry_s = retry_s
        self._look_s = look_s
        self._task: asyncio.Task[None] | None = None
        self.last: IntegrityReport | None = None

    async def prepare(self) -> None:
        """Fence what may have lost its fence, if the bookie is in limbo. It may be registered and served after this.

        A fence matters only where a writer may still write: in a ledger's last fragment.
        """
        if self._bookie.limbo.reason is None:
            return
        named = sorted(await self._peers.fenceable())
        for start in range(0, len(named), _FENCES_AT_ONCE):
            await self._bookie.fence_unasked(named[start : start + _FENCES_AT_ONCE])
        await self._bookie.forget_missing_logs()
        self._bookie.fences_are_back()
        log.info("limbo.fenced", bookie=self._bookie.bookie_id, ledgers=len(named))

    def start(self) -> None:
        """Check in the background whenever the bookie is in limbo, or its index in doubt, until it is not."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            await self._until_whole()
            await asyncio.sleep(self._look_s)

    @property
    def _all_is_in_doubt(self) -> bool:
        return self._bookie.limbo.reason is not None or self._bookie.in_doubt is not None

    async def _until_whole(self) -> None:
        loop = asyncio.get_running_loop()
        begun, pause = loop.time(), self._retry_s
        while self._bookie.limbo or self._all_is_in_doubt:
            try:
                report = await self.check()
                waited = loop.time() - begun >= self._bookie.settings.gc_grace_s
                if waited:
                    await self._bookie.leave_limbo(report.lost.keys() | report.unsettled)
            except Exception as error:
                log.warning("integrity.check_failed", reason=str(error) or type(error).__name__)
            if self._bookie.limbo or self._all_is_in_doubt:
                await asyncio.sleep(pause)
                pause = self._retry_s if self._all_is_in_doubt else min(2 * pause, _BACKOFF * self._retry_s)

    async def check(self) -> IntegrityReport:
        """One look at every ledger that names this bookie. Raises if any could not be looked at."""
        report = IntegrityReport()
        for ledger_id in sorted(await self._peers.ledgers()):
            await self._check_ledger(ledger_id, report)
        self.last = report
        return report

    async def _check_ledger(self, ledger_id: int, report: IntegrityReport) -> None:
        holdings = await self._peers.holdings(ledger_id)
        if holdings is None:
            return
        report.ledgers += 1
        if not holdings.settled:
            report.unsettled.add(ledger_id)
        try:
            here = await self._bookie.held(ledger_id)
        except ReadFailed as error:
            raise ReadFailed(f"ledger {ledger_id}: {error}") from error
        if here:
            self._bookie.remember(ledger_id, holdings.master_key)
        await asyncio.sleep(0)
        for entry_id in _missing(holdings.ranges, here):
            if await self.restore(ledger_id, entry_id, holdings.master_key):
                report.fetched += 1
            else:
                report.lost[ledger_id] = report.lost.get(ledger_id, 0) + 1
                log.error("integrity.entry_lost", ledger_id=ledger_id, entry_id=entry_id)

    async def restore(self, ledger_id: int, entry_id: int, master_key: bytes = b"") -> bool:
        """Get one entry back. False: no peer has it whole. Raises: OSError where it cannot be kept here."""
        entry = await self._peers.fetch(ledger_id, entry_id)
        if entry is None or not _is_entry(entry, ledger_id, entry_id):
            return False
        status = await self._bookie.add_repaired(ledger_id, entry_id, entry, master_key)
        if status is not BookieStatus.OK:
            raise OSError(f"entry {ledger_id}:{entry_id} was fetched, but adding it gave {status.name}")
        return True


def _is_entry(entry: bytes, ledger_id: int, entry_id: int) -> bool:
    if len(entry) < ENTRY_HEADER_BYTES or ENTRY_HEADER.unpack_from(entry)[:2] != (ledger_id, entry_id):
        return False
    return entry_digest_matches(entry[:ENTRY_HEADER_BYTES], (entry[ENTRY_HEADER_BYTES:],))


def _missing(wanted: Sequence[tuple[int, int]], here: Sequence[tuple[int, int]]) -> Iterator[int]:
    """The entries of `wanted` that are not in `here`; both rising."""
    position = 0
    for first, last in wanted:
        entry_id = first
        while entry_id <= last:
            while position < len(here) and here[position][1] < entry_id:
                position += 1
            if position < len(here) and here[position][0] <= entry_id:
                entry_id = here[position][1] + 1
                continue
            yield entry_id
            entry_id += 1
