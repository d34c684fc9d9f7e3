"""`magnetar autorecovery status|underreplicated|trigger|pause|resume`: lost copies, and who makes new ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from magnetar.autorecovery import operations
from magnetar.cli.operator.ledger import every_ledger
from magnetar.cli.operator.store import (
    JsonOption,
    OpenCluster,
    StoreOption,
    show_json,
    show_table,
    with_cluster,
)
from magnetar.cli.units import iso_time
from magnetar.ledger.underreplicated import UnderreplicatedLedgers

if TYPE_CHECKING:
    from magnetar.autorecovery.operations import AutorecoveryStatus
    from magnetar.autorecovery.records import RepairReport

app = typer.Typer()


@dataclass(frozen=True, slots=True)
class Missing:
    """A ledger with copies on bookies that are away, or marked for another reason."""

    ledger_id: int
    bookies: tuple[str, ...]
    since_ms: int | None
    """When it was marked; None: nobody has yet, because its bookie may come back."""


@app.command("status")
def status(metadata_store: StoreOption = "", json: JsonOption = False) -> None:
    """Tell who looks after lost copies, what is being repaired, and what never can be."""
    found = with_cluster(metadata_store, lambda cluster: operations.status(cluster.metadata))
    if json:
        show_json(_as_json(found))
        return
    print(f"auditor: {found.auditor or 'nobody: start magnetar autorecovery'}")
    print(f"workers: {' '.join(found.workers) or 'nobody: start magnetar autorecovery'}")
    if found.paused:
        print("paused: nothing is looked for or repaired until `magnetar autorecovery resume`")
    print(f"ledgers marked: {len(found.underreplicated)}, {len(found.repairing)} of them being repaired")
    for report in found.reports:
        print(report)


@app.command("underreplicated")
def underreplicated(metadata_store: StoreOption = "", json: JsonOption = False) -> None:
    """Name the ledgers that have fewer copies than they should. None: all is whole.

    Beside those that are marked, those whose bookies are away and that nobody has marked yet.
    """
    found = with_cluster(metadata_store, _missing)
    if json:
        show_json(
            [
                {"ledgerId": each.ledger_id, "missing": list(each.bookies), "sinceMs": each.since_ms}
                for each in found
            ]
        )
        return
    rows = [
        (
            each.ledger_id,
            " ".join(each.bookies),
            iso_time(each.since_ms) if each.since_ms else "not marked yet",
        )
        for each in found
    ]
    show_table(("LEDGER", "MISSING ON", "SINCE"), rows, empty="all is whole")


@app.command("trigger")
def trigger(
    metadata_store: StoreOption = "",
    wait_s: Annotated[
        float, typer.Option("--wait", help="How long to wait for the auditor, in seconds.")
    ] = 600.0,
    json: JsonOption = False,
) -> None:
    """Have the auditor mark now what bookies that are away held, without waiting for their return."""

    async def work(cluster: OpenCluster) -> list[Missing]:
        await operations.trigger(cluster.metadata, wait_s=wait_s)
        return await _missing(cluster)

    found = with_cluster(metadata_store, work)
    if json:
        show_json({"underreplicated": [each.ledger_id for each in found]})
    else:
        print(f"audited: {len(found)} ledgers have fewer copies than they should")


@app.command("pause")
def pause(metadata_store: StoreOption = "") -> None:
    """Neither look for lost copies nor make new ones, until `resume`: for work on many bookies at once."""
    with_cluster(metadata_store, lambda cluster: UnderreplicatedLedgers(cluster.metadata).pause())
    print("autorecovery is paused")


@app.command("resume")
def resume(metadata_store: StoreOption = "") -> None:
    """End a pause."""
    with_cluster(metadata_store, lambda cluster: UnderreplicatedLedgers(cluster.metadata).resume())
    print("autorecovery goes on")


async def _missing(cluster: OpenCluster) -> list[Missing]:
    """Marks first, then registrations: what is marked in between is told once, what is repaired not at all."""
    present = set(await cluster.provider.readable())
    away: dict[int, tuple[str, ...]] = {}
    async for metadata in every_ledger(cluster):
        named = {bookie for segment in metadata.segments for bookie in segment.ensemble}
        if gone := tuple(sorted(named - present)):
            away[metadata.ledger_id] = gone
    marks = {mark.ledger_id: mark for mark in await UnderreplicatedLedgers(cluster.metadata).list()}
    return [
        Missing(
            ledger_id,
            marks[ledger_id].missing if ledger_id in marks else away[ledger_id],
            marks[ledger_id].since_ms if ledger_id in marks else None,
        )
        for ledger_id in sorted({*away, *marks})
    ]


def _as_json(found: AutorecoveryStatus) -> dict[str, Any]:
    return {
        "auditor": found.auditor,
        "workers": list(found.workers),
        "paused": found.paused,
        "lostBookieDelayS": found.lost_bookie_delay_s,
        "underreplicated": [
            {"ledgerId": mark.ledger_id, "missing": list(mark.missing), "sinceMs": mark.since_ms}
            for mark in found.underreplicated
        ],
        "repairing": {str(ledger_id): worker for ledger_id, worker in sorted(found.repairing.items())},
        "reports": [_report_json(report) for report in found.reports],
    }


def _report_json(report: RepairReport) -> dict[str, Any]:
    return {
        "ledgerId": report.ledger_id,
        "reason": report.reason,
        "sinceMs": report.since_ms,
        "lostEntries": report.lost_count,
        "lost": [
            {
                "firstEntry": each.first_entry,
                "ensemble": list(each.ensemble),
                "entries": [list(run) for run in each.entries],
            }
            for each in report.lost
        ],
    }
