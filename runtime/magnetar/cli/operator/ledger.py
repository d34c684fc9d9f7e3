"""`magnetar ledger`: looking into ledgers, closing and deleting them, without a broker."""

from __future__ import annotations

import asyncio
import os
import sys
from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from magnetar.cli.errors import CommandError
from magnetar.cli.operator.store import (
    JsonOption,
    OpenCluster,
    StoreOption,
    read_log,
    show_json,
    show_table,
    with_cluster,
)
from magnetar.cli.units import iso_time
from magnetar.ledger.errors import NoSuchLedger

if TYPE_CHECKING:
    from magnetar.ledger.metadata import LedgerMetadata

app = typer.Typer()

Ledger = Annotated[int, typer.Argument(metavar="LEDGER", min=0, help="Id of a ledger.")]

_AT_ONCE = 64
_SHOWN_BYTES = 32


@app.command("list")
def list_ledgers(
    metadata_store: StoreOption = "",
    bookie: Annotated[str, typer.Option(metavar="ID", help="Only those with entries on this bookie.")] = "",
    topic: Annotated[str, typer.Option(help="Only those of this topic and its subscriptions.")] = "",
    json: JsonOption = False,
) -> None:
    """Name all ledgers, oldest first."""
    from magnetar.naming import NamingError, TopicName

    log_name = ""
    if topic:
        try:
            name = TopicName.parse(topic)
        except NamingError as error:
            raise CommandError(str(error)) from error
        log_name = name.managed_ledger_name
    found = with_cluster(metadata_store, lambda cluster: _list(cluster, bookie, log_name))
    if json:
        show_json([as_json(each) for each in found])
        return
    rows = [
        (
            each.ledger_id,
            each.state.name,
            f"{each.ensemble_size}/{each.write_quorum}/{each.ack_quorum}",
            each.last_entry + 1 if each.closed else "-",
            each.length if each.closed else "-",
            len(each.segments),
            owner_of(each),
        )
        for each in found
    ]
    columns = ("LEDGER", "STATE", "E/QW/QA", "ENTRIES", "BYTES", "FRAGMENTS", "OF")
    show_table(
        columns, rows, empty="there are no such ledgers" if bookie or topic else "there are no ledgers"
    )


@app.command("show")
def show(ledger: Ledger, metadata_store: StoreOption = "", json: JsonOption = False) -> None:
    """Tell what is known of one ledger: its state, quorums and bookies."""
    found = with_cluster(metadata_store, lambda cluster: cluster.ledgers.metadata_of(ledger))
    if json:
        show_json(as_json(found))
        return
    print(f"ledger {found.ledger_id}: {found.state.name}, of {owner_of(found) or 'nobody known'}")
    print(f"made {iso_time(found.created_ms)}")
    print(f"ensemble {found.ensemble_size}, write quorum {found.write_quorum}, ack quorum {found.ack_quorum}")
    if found.closed:
        print(f"{found.last_entry + 1} entries, {found.length} bytes")
    rows = [(segment.first_entry, " ".join(segment.ensemble)) for segment in found.segments]
    show_table(("FROM ENTRY", "BOOKIES"), rows, empty="")


@app.command("read")
def read(
    ledger: Ledger,
    metadata_store: StoreOption = "",
    first: Annotated[int, typer.Option("--first", min=0, help="First entry.")] = 0,
    last: Annotated[int, typer.Option("--last", help="Last entry; -1: the last there is.")] = -1,
    all_replicas: Annotated[
        bool, typer.Option("--all-replicas", help="Read each copy that metadata name, and compare them.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Read entries. An open ledger is read up to what is confirmed, and not disturbed.

    With --all-replicas, say whether every copy is there and right. Status 1 if one is not.
    """
    if all_replicas:
        _verify(ledger, metadata_store, json)
        return

    async def entries(cluster: OpenCluster) -> None:
        shown: list[dict[str, Any]] = []
        async for entry in _read(cluster, ledger, first, last):
            if json:
                shown.append(entry)
            else:
                print(f"{ledger}:{entry['entryId']}  {entry['bytes']} bytes  {entry['preview']}")
        if json:
            show_json([{key: value for key, value in entry.items() if key != "preview"} for entry in shown])

    with_cluster(metadata_store, entries)


@app.command("recover")
def recover(ledger: Ledger, metadata_store: StoreOption = "", json: JsonOption = False) -> None:
    """Fence a ledger, find its end and close it. Its writer, if it lives, goes on in a new one."""

    async def work(cluster: OpenCluster) -> LedgerMetadata:
        return (await cluster.ledgers.open(ledger, recover=True)).metadata

    found = with_cluster(metadata_store, work)
    if json:
        show_json(as_json(found))
    else:
        print(f"ledger {ledger} is closed: {found.last_entry + 1} entries, {found.length} bytes")


@app.command("delete")
def delete(
    ledger: Ledger,
    metadata_store: StoreOption = "",
    force: Annotated[
        bool, typer.Option("--force", help="Also one that a topic or a subscription still counts on.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Delete a ledger for ever. Its bookies give the room back when they next collect garbage."""

    async def work(cluster: OpenCluster) -> None:
        metadata = await cluster.ledgers.metadata_of(ledger)
        reason = None if force else await reason_to_keep(cluster, metadata)
        if reason:
            raise CommandError(
                f"ledger {ledger} {reason}. Deleting it could lose messages; say --force if that is what you want"
            )
        await cluster.ledgers.delete(ledger)

    if sys.stdin.isatty() and not force and not json:
        typer.confirm(f"Delete ledger {ledger} for ever?", abort=True)
    with_cluster(metadata_store, work)
    if json:
        show_json({"ledgerId": ledger, "deleted": True})
    else:
        print(f"ledger {ledger} is deleted")


@app.command("move")
def move(
    ledgers: Annotated[list[int], typer.Argument(metavar="LEDGER...", help="Ids of closed ledgers.")],
    onto: Annotated[list[str], typer.Option("--onto", metavar="BOOKIE", help="Where copies may go.")],
    away_from: Annotated[
        list[str] | None, typer.Option("--from", metavar="BOOKIE", help="Which copies move; all if not said.")
    ] = None,
    metadata_store: StoreOption = "",
) -> None:
    """Move copies of closed ledgers onto given bookies, new ones for instance. Status 1 if something was left."""
    from magnetar.autorecovery.operations import move_ledgers
    from magnetar.autorecovery.settings import AutorecoverySettings

    async def work(cluster: OpenCluster) -> int:
        left = 0
        async for step in move_ledgers(
            cluster.metadata,
            cluster.ledgers,
            cluster.provider,
            ledgers,
            onto=onto,
            away_from=away_from or (),
            settings=AutorecoverySettings(),
            name=f"command-{os.getpid()}-{cluster.dice.getrandbits(32):08x}",
        ):
            left += bool(step.problem)
            told = step.problem or f"{step.slots} copies moved"
            print(f"{step.done}/{step.total}  ledger {step.ledger_id}: {told}", flush=True)
        return left

    if with_cluster(metadata_store, work):
        raise typer.Exit(1)


def _verify(ledger: int, metadata_store: str, json: bool) -> None:
    report = with_cluster(metadata_store, lambda cluster: cluster.ledgers.verify(ledger))
    if json:
        show_json(
            {
                "ledgerId": ledger,
                "whole": report.whole,
                "lastEntryId": report.last_entry,
                "copies": report.copies,
                "lost": list(report.lost),
                "faults": [
                    {"entryId": each.entry_id, "bookieId": each.bookie, "problem": each.problem}
                    for each in report.faults
                ],
            }
        )
    else:
        for fault in report.faults:
            print(f"{ledger}:{fault.entry_id} on {fault.bookie}: {fault.problem}")
        for entry_id in report.lost:
            print(f"{ledger}:{entry_id} has no good copy left")
        told = "every copy is there and right" if report.whole else f"{report.fault_count} copies are not"
        print(f"ledger {ledger}: {report.last_entry + 1} entries, {report.copies} good copies; {told}")
    if not report.whole:
        raise typer.Exit(1)


def as_json(metadata: LedgerMetadata) -> dict[str, Any]:
    """As BookKeeper's tools name things."""
    return {
        "ledgerId": metadata.ledger_id,
        "state": metadata.state.name,
        "ensembleSize": metadata.ensemble_size,
        "writeQuorumSize": metadata.write_quorum,
        "ackQuorumSize": metadata.ack_quorum,
        "lastEntryId": metadata.last_entry,
        "length": metadata.length,
        "ctime": metadata.created_ms,
        "ensembles": {str(each.first_entry): list(each.ensemble) for each in metadata.segments},
        "customMetadata": {
            key: value.decode("utf-8", "replace") for key, value in sorted(metadata.custom.items())
        },
    }


def owner_of(metadata: LedgerMetadata) -> str:
    """The topic, and the subscription if it is a cursor's."""
    log_name = metadata.custom.get(LOG_KEY, b"").decode("utf-8", "replace")
    cursor = metadata.custom.get(CURSOR_KEY, b"").decode("utf-8", "replace")
    return f"{log_name} ({cursor})" if cursor else log_name


LOG_KEY = "managed-ledger"
CURSOR_KEY = "cursor"


async def every_ledger(cluster: OpenCluster) -> AsyncIterator[LedgerMetadata]:
    """The metadata of all ledgers; those deleted meanwhile are passed over."""
    ids = await cluster.ledgers.list()
    for at in range(0, len(ids), _AT_ONCE):
        for found in await asyncio.gather(*(_metadata(cluster, each) for each in ids[at : at + _AT_ONCE])):
            if found is not None:
                yield found


async def _metadata(cluster: OpenCluster, ledger_id: int) -> LedgerMetadata | None:
    try:
        return await cluster.ledgers.metadata_of(ledger_id)
    except NoSuchLedger:
        return None


async def _list(cluster: OpenCluster, bookie: str, log_name: str) -> Sequence[LedgerMetadata]:
    return [
        each
        async for each in every_ledger(cluster)
        if (not bookie or any(bookie in segment.ensemble for segment in each.segments))
        and (not log_name or each.custom.get(LOG_KEY, b"").decode("utf-8", "replace") == log_name)
    ]


async def _read(cluster: OpenCluster, ledger_id: int, first: int, last: int) -> AsyncIterator[dict[str, Any]]:
    reader = await cluster.ledgers.open(ledger_id, recover=False)
    end = reader.last_confirmed if last < 0 else last
    if end > reader.last_confirmed:
        raise CommandError(
            f"ledger {ledger_id} ends at entry {reader.last_confirmed}"
            + ("" if reader.closed else ", as far as is confirmed")
        )
    while first <= end:
        for entry in await reader.read(first, end):
            payload = bytes(entry.payload)
            yield {
                "entryId": entry.entry_id,
                "bytes": len(payload),
                "lac": entry.lac,
                "payload": b64encode(payload).decode(),
                "preview": payload[:_SHOWN_BYTES].hex(" ") + (" ..." if len(payload) > _SHOWN_BYTES else ""),
            }
            first = entry.entry_id + 1


async def reason_to_keep(cluster: OpenCluster, metadata: LedgerMetadata) -> str | None:
    """Why a ledger may not be deleted; None: nothing counts on it, and nothing will."""
    from magnetar.policies.paths import cluster as cluster_path

    user = await _user_of(cluster, metadata)
    if user:
        return f"is in use: {user} counts on it"
    if not metadata.closed:
        return (
            "is not closed: its writer may be about to name it, and to write to it. "
            f"Close it first with `magnetar ledger recover {metadata.ledger_id}`"
        )
    if not await cluster.metadata.exists(cluster_path(cluster.identity.cluster)):
        return "may be in use: topics are recorded in another metadata store, that of the brokers"
    return None


async def _user_of(cluster: OpenCluster, metadata: LedgerMetadata) -> str | None:
    """The topic or subscription whose record names the ledger."""
    from magnetar.managed_ledger.records import cursor_path, decode_cursor

    log_name = metadata.custom.get(LOG_KEY, b"").decode()
    cursor = metadata.custom.get(CURSOR_KEY, b"").decode()
    if not log_name:
        return None
    log = await read_log(cluster.metadata, log_name)
    if log is None:
        return None
    if any(each.ledger_id == metadata.ledger_id for each in log.ledgers):
        return f"topic {log_name}"
    if cursor:
        stored = await cluster.metadata.get(cursor_path(log_name, cursor))
        if stored is not None and decode_cursor(cursor, stored.value).ledger_id == metadata.ledger_id:
            return f"subscription {cursor!r} of topic {log_name}"
    return None
