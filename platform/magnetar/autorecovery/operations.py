"""What operators ask of autorecovery. Each call stands by itself; none needs a process that runs already."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, replace

from magnetar.autorecovery.errors import AuditPaused, AutorecoveryError, NoAuditor, UnknownBookie
from magnetar.autorecovery.extents import names_any
from magnetar.autorecovery.records import (
    AUDITED_PATH,
    ELECTION_PATH,
    WORKERS_PATH,
    Audited,
    RepairReport,
    RepairReports,
    ask_for_audit,
    leaving_bookies,
    lost_bookie_delay_s,
    read_audited,
)
from magnetar.autorecovery.repair import Outcome, Repairer
from magnetar.autorecovery.settings import AutorecoverySettings
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import MetadataCorrupt, NoSuchLedger
from magnetar.ledger.metadata import LedgerMetadata
from magnetar.ledger.underreplicated import UnderreplicatedLedger, UnderreplicatedLedgers, telling
from magnetar.metadata.store import MetadataStore, Notification
from magnetar.protocol.bookie import BookieProvider

METADATA_AT_ONCE = 64
LOOK_AGAIN_S = 1.0


@dataclass(frozen=True, slots=True)
class AutorecoveryStatus:
    """How things stand, from the metadata store alone."""

    auditor: str | None
    """Who leads; None: nobody."""
    workers: tuple[str, ...]
    paused: bool
    lost_bookie_delay_s: float | None
    """As set at run time; None: as configured."""
    underreplicated: tuple[UnderreplicatedLedger, ...]
    repairing: dict[int, str]
    """Ledger → who works on it."""
    reports: tuple[RepairReport, ...]
    """What could not be repaired so far."""
    leaving: tuple[str, ...]
    """Bookies that are being emptied."""
    audited: Audited

    @property
    def lost(self) -> tuple[RepairReport, ...]:
        """Ledgers with entries that nobody has."""
        return tuple(report for report in self.reports if report.lost)


async def status(store: MetadataStore) -> AutorecoveryStatus:
    """
    Raises:
        MetadataUnavailable
    """
    marks = UnderreplicatedLedgers(store)
    with telling("asking who leads and who works"):
        leader = await store.get(ELECTION_PATH)
        workers = await store.children(WORKERS_PATH)
    return AutorecoveryStatus(
        auditor=None if leader is None else leader.value.decode("utf-8", "replace"),
        workers=tuple(workers),
        paused=await marks.paused(),
        lost_bookie_delay_s=await lost_bookie_delay_s(store),
        underreplicated=tuple(await marks.list()),
        repairing=await marks.locks(),
        reports=tuple(await RepairReports(store).list()),
        leaving=await leaving_bookies(store),
        audited=await read_audited(store),
    )


async def trigger(store: MetadataStore, *, wait_s: float = 600.0) -> None:
    """Have the auditor look now which ledgers name bookies that are away, without waiting for their return; comes
    back when all of these are marked.

    Raises:
        AuditPaused: autorecovery is paused.
        NoAuditor: nobody did it in time.
    """
    if await UnderreplicatedLedgers(store).paused():
        raise AuditPaused
    news = asyncio.Event()

    def told(notification: Notification) -> None:
        news.set()

    watch = store.watch(AUDITED_PATH, told)
    try:
        number = await ask_for_audit(store)
        async with asyncio.timeout(wait_s):
            while (await read_audited(store)).asked < number:
                news.clear()
                await _wait(news, LOOK_AGAIN_S)
    except TimeoutError as error:
        raise NoAuditor(wait_s) from error
    finally:
        watch.cancel()


@dataclass(frozen=True, slots=True)
class LedgerStep:
    """One ledger has been dealt with."""

    ledger_id: int
    done: int
    total: int
    """Ledgers there are to deal with."""
    slots: int = 0
    """Places in its segments that have another bookie now."""
    problem: str = ""
    """Why it is not whole yet; "" if it is."""


async def recover_bookie(
    store: MetadataStore,
    ledgers: LedgerClient,
    provider: BookieProvider,
    bookie: str,
    *,
    settings: AutorecoverySettings,
    name: str,
    accept_loss: bool = False,
) -> AsyncIterator[LedgerStep]:
    """Copy by hand what a bookie held, from its peers or, while it can be read, from itself. One ledger at a time.

    Open ledgers that name it are taken from their writers and closed.

    Args:
        name: tells this call from every worker.
        accept_loss: move on where entries are lost: see `Repairer.repair`.
    Raises:
        UnknownBookie, MetadataUnavailable
    """
    named = [metadata.ledger_id for metadata in await ledgers_naming(ledgers, {bookie})]
    if not named and bookie not in await provider.known():
        raise UnknownBookie(bookie)
    marks, reports = UnderreplicatedLedgers(store), RepairReports(store)
    repairer = Repairer(ledgers, provider, settings)
    leaving = {bookie, *await leaving_bookies(store)}
    for done, ledger_id in enumerate(named, 1):
        step = LedgerStep(ledger_id, done, len(named))
        lock = await marks.lock(ledger_id, name)
        if lock is None:
            yield replace(step, problem="a worker repairs it already")
            continue
        try:
            mark = await marks.get(ledger_id)
            repair = await repairer.repair(
                ledger_id,
                lock,
                leaving=leaving,
                suspects=() if mark is None else mark.missing,
                fence_open=True,
                accept_loss=accept_loss,
            )
            step = replace(step, slots=repair.substitutions)
            if repair.outcome in (Outcome.WHOLE, Outcome.DELETED, Outcome.SUSPECTED):
                # What an open fragment's other bookies may lack is for the workers: it stays marked.
                if mark is not None and lock.held and repair.outcome is not Outcome.SUSPECTED:
                    await marks.clear(mark)
                if not accept_loss:
                    await reports.drop(ledger_id)
            else:
                report = repair.report or RepairReport(ledger_id, f"it is {repair.outcome.value}")
                await reports.put(report)
                step = replace(step, problem=str(report))
        except (AutorecoveryError, MetadataCorrupt) as error:
            step = replace(step, problem=str(error))
        finally:
            await lock.release()
        yield step


async def move_ledgers(
    store: MetadataStore,
    ledgers: LedgerClient,
    provider: BookieProvider,
    ledger_ids: Collection[int],
    *,
    onto: Collection[str],
    away_from: Collection[str] = (),
    settings: AutorecoverySettings,
    name: str,
) -> AsyncIterator[LedgerStep]:
    """Move copies of closed ledgers onto given bookies, e.g. new ones. Nothing moves by itself when bookies are added.

    Args:
        onto: each takes at most one slot of a fragment.
        away_from: whose copies are moved; none: those of any others.
    Raises:
        UnknownBookie: one of `onto` is not there.
        MetadataUnavailable
    """
    writable = await provider.writable()
    for bookie in onto:
        if bookie not in writable:
            raise UnknownBookie(bookie)
    marks = UnderreplicatedLedgers(store)
    repairer = Repairer(ledgers, provider, settings)
    for done, ledger_id in enumerate(sorted(ledger_ids), 1):
        step = LedgerStep(ledger_id, done, len(ledger_ids))
        lock = await marks.lock(ledger_id, name)
        if lock is None:
            yield replace(step, problem="a worker repairs it now")
            continue
        try:
            metadata = await ledgers.metadata_of(ledger_id)
            if not metadata.closed:
                step = replace(step, problem="it is open: its writer chooses its bookies")
            else:
                slots = await repairer.move(ledger_id, lock, onto=onto, away_from=away_from)
                step = replace(step, slots=slots)
        except NoSuchLedger:
            step = replace(step, problem="there is no such ledger")
        except (AutorecoveryError, MetadataCorrupt) as error:
            step = replace(step, problem=str(error))
        finally:
            await lock.release()
        yield step


async def ledgers_naming(ledgers: LedgerClient, bookies: Collection[str]) -> list[LedgerMetadata]:
    """The ledgers whose segments name one of `bookies`. Reads the metadata of all.

    Raises:
        MetadataCorrupt: of one nobody can tell.
    """
    found: list[LedgerMetadata] = []
    ids = await ledgers.list()
    for start in range(0, len(ids), METADATA_AT_ONCE):
        found += await still_naming(ledgers, ids[start : start + METADATA_AT_ONCE], bookies)
    return found


async def still_naming(
    ledgers: LedgerClient, ids: Collection[int], bookies: Collection[str]
) -> list[LedgerMetadata]:
    """Those of some ledgers, the deleted ones left out."""
    registry = ledgers.surroundings.registry
    records = await asyncio.gather(*map(registry.get, ids))
    return [record[0] for record in records if record is not None and names_any(record[0], bookies)]


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
