"""Taking a bookie out of a cluster, alive or dead: empty it, tell how far that is, then forget it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable
from dataclasses import dataclass

from magnetar.autorecovery.errors import UnknownBookie
from magnetar.autorecovery.extents import extents
from magnetar.autorecovery.operations import METADATA_AT_ONCE, ledgers_naming, still_naming
from magnetar.autorecovery.records import WORKERS_PATH, RepairReport, RepairReports, set_leaving
from magnetar.environment.clock import Clock
from magnetar.environment.crash import crash_point
from magnetar.environment.logs import get_logger
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.metadata import LedgerMetadata
from magnetar.ledger.underreplicated import UnderreplicatedLedgers, telling
from magnetar.metadata.errors import NotFound
from magnetar.metadata.store import MetadataStore
from magnetar.protocol.bookie import (
    COOKIES_PATH,
    READ_ONLY_WANTED_PATH,
    REGISTRATION_VERSION,
    BookieProvider,
)

log = get_logger("magnetar.autorecovery")

STANDSTILLS = 3
"""Looks in a row at which nothing had moved and all that is left was reported as stuck: then nobody need wait."""


@dataclass(frozen=True, slots=True)
class DecommissionProgress:
    """How far a decommission is."""

    bookie: str
    ledgers_left: int
    """Ledgers whose metadata name it."""
    ledgers_total: int
    """At the beginning."""
    bytes_left: int
    """About as much is still to be copied, of closed ledgers."""
    open_left: int
    """Of the ledgers left, those still open: their writers replace it at their next entry, or are fenced."""
    blocked: tuple[RepairReport, ...]
    """Ledgers that cannot be moved now, and why."""
    expected_s: float | None
    """Until the end, at the pace so far; None while there is none to judge by."""
    workers: int
    """Who copies. 0: start `magnetar autorecovery`."""
    done: bool = False
    """The bookie is out: no ledger names it and its cookie is gone."""

    @property
    def stuck(self) -> bool:
        """Whether nothing is left but what cannot be moved."""
        return not self.done and self.ledgers_left > 0 and len(self.blocked) == self.ledgers_left


async def decommission(
    store: MetadataStore,
    ledgers: LedgerClient,
    provider: BookieProvider,
    bookie: str,
    *,
    clock: Clock,
    poll_s: float = 2.0,
    wait_when_stuck: bool = False,
) -> AsyncIterator[DecommissionProgress]:
    """Empty a bookie and take it out. Workers do the copying; this tells how far they are.

    The bookie is made read-only first and may go on running: its copies are then read from itself too. Once no
    ledger names it, its cookie is removed, and its process can be ended; until then it stays read-only. Stopping to
    listen stops nothing but the end: call again to go on. `cancel` takes it back.

    Args:
        wait_when_stuck: go on where all that is left is blocked; otherwise the last report says by what.
    Raises:
        UnknownBookie, MetadataUnavailable
    """
    left = await ledgers_naming(ledgers, {bookie})
    if not left and bookie not in await provider.known():
        raise UnknownBookie(bookie)
    with telling(f"making {bookie} read-only"):
        await store.put(f"{READ_ONLY_WANTED_PATH}/{bookie}", b'{"version":%d}' % REGISTRATION_VERSION)
    await set_leaving(store, bookie, True)
    log.info("decommission.began", bookie=bookie, ledgers=len(left))
    crash_point("autorecovery.leaving")
    pace = _Pace(clock.monotonic(), len(left), _bytes_of(left, bookie))
    reports = RepairReports(store)
    standstills = 0
    looks = 0
    unnamed = False
    """Whether the last look at all ledgers found none. Who makes ledgers may hear late that it is read-only."""
    while True:
        before = {metadata.ledger_id for metadata in left}
        left = await _look_again(ledgers, sorted(before), bookie)
        if not left and bookie not in await provider.writable():
            left = await ledgers_naming(ledgers, {bookie})  # Those made while it was still writable.
            if not left and unnamed:
                break
            unnamed = not left
        ids = {metadata.ledger_id for metadata in left}
        if looks and ids == before:
            await _mark(UnderreplicatedLedgers(store), ids, bookie)
        looks += 1
        bytes_left = _bytes_of(left, bookie)
        with telling("counting workers"):
            workers = len(await store.children(WORKERS_PATH))
        progress = DecommissionProgress(
            bookie=bookie,
            ledgers_left=len(left),
            ledgers_total=pace.ledgers,
            bytes_left=bytes_left,
            open_left=sum(not metadata.closed for metadata in left),
            blocked=tuple(report for report in await reports.list() if report.ledger_id in ids),
            expected_s=pace.expected_s(clock.monotonic(), len(left), bytes_left),
            workers=workers,
        )
        yield progress
        standstills = standstills + 1 if progress.stuck and ids == before else 0
        if standstills >= STANDSTILLS and not wait_when_stuck:
            return
        await asyncio.sleep(poll_s)
    crash_point("autorecovery.emptied")
    await _forget(store, bookie, registered=bookie in await provider.readable())
    log.info("decommission.done", bookie=bookie)
    yield DecommissionProgress(bookie, 0, pace.ledgers, 0, 0, (), 0.0, 0, done=True)


async def cancel(store: MetadataStore, bookie: str) -> None:
    """The bookie is to stay: what has been moved stays moved."""
    await set_leaving(store, bookie, False)
    await _delete(store, f"{READ_ONLY_WANTED_PATH}/{bookie}")


async def _forget(store: MetadataStore, bookie: str, *, registered: bool) -> None:
    """The cookie goes last but for the notes: whoever is interrupted here can call again."""
    await _delete(store, f"{COOKIES_PATH}/{bookie}")
    # One that still runs would take new ledgers again, shortly before its process is ended.
    if not registered:
        await _delete(store, f"{READ_ONLY_WANTED_PATH}/{bookie}")
    await set_leaving(store, bookie, False)


async def _mark(marks: UnderreplicatedLedgers, ids: Collection[int], bookie: str) -> None:
    """Mark those that are not. The auditor marked what there was when it looked; later ones may name it as well."""
    unmarked = set(ids).difference(await marks.ids()) if ids else set()
    for ledger_id in sorted(unmarked):
        await marks.mark(ledger_id, {bookie}, tell=False)
    if unmarked:
        await marks.tell()


async def _delete(store: MetadataStore, path: str) -> None:
    with telling(f"deleting {path}"):
        try:
            await store.delete(path)
        except NotFound:
            return


async def _look_again(ledgers: LedgerClient, ids: list[int], bookie: str) -> list[LedgerMetadata]:
    left: list[LedgerMetadata] = []
    for start in range(0, len(ids), METADATA_AT_ONCE):
        left += await still_naming(ledgers, ids[start : start + METADATA_AT_ONCE], {bookie})
    return left


def _bytes_of(ledgers: Iterable[LedgerMetadata], bookie: str) -> int:
    """What a bookie holds of closed ledgers, as if all their entries were of one size."""
    total = 0.0
    for metadata in ledgers:
        if not metadata.closed or metadata.last_entry < 0:
            continue
        share = metadata.write_quorum / metadata.ensemble_size
        for extent in extents(metadata):
            if bookie in extent.ensemble and extent.last_entry is not None:
                entries = extent.last_entry - extent.first_entry + 1
                total += metadata.length * entries / (metadata.last_entry + 1) * share
    return round(total)


@dataclass(frozen=True, slots=True)
class _Pace:
    """Where it began."""

    since: float
    ledgers: int
    bytes: int

    def expected_s(self, now: float, ledgers_left: int, bytes_left: int) -> float | None:
        """By bytes where there are any, by ledgers otherwise."""
        total, left = (self.bytes, bytes_left) if self.bytes else (self.ledgers, ledgers_left)
        if left >= total or now <= self.since:
            return None
        return (now - self.since) * left / (total - left)
