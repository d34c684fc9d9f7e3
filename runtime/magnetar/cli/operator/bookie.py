"""`magnetar bookie list|info|...`: the bookies of a cluster."""

from __future__ import annotations

import asyncio
import json as json_module
from typing import Annotated, Any

import typer

from magnetar.cli.errors import CommandError
from magnetar.cli.operator.ledger import every_ledger
from magnetar.cli.operator.store import (
    JsonOption,
    OpenCluster,
    StoreOption,
    show_json,
    show_table,
    with_cluster,
)
from magnetar.metadata.paths import join
from magnetar.protocol.bookie import AVAILABLE_PATH, COOKIES_PATH

app = typer.Typer()

BookieId = Annotated[str, typer.Argument(metavar="BOOKIE", help="Id of a bookie.")]


@app.command("list")
def list_bookies(metadata_store: StoreOption = "", json: JsonOption = False) -> None:
    """Name all bookies that ever joined and were not removed, and how they are."""
    found = with_cluster(metadata_store, _list)
    if json:
        show_json(found)
        return
    rows = [(each["bookieId"], each["state"], each["address"]) for each in found]
    show_table(("BOOKIE", "STATE", "ADDRESS"), rows, empty="no bookie has joined this cluster yet")


@app.command("info")
def info(bookie: BookieId, metadata_store: StoreOption = "", json: JsonOption = False) -> None:
    """Tell how one bookie is: its room, and what it holds."""
    found = with_cluster(metadata_store, lambda cluster: _info(cluster, bookie))
    if json:
        show_json(found)
        return
    print(
        f"bookie {found['bookieId']}: {found['state']}"
        + (f" at {found['address']}" if found["address"] else "")
    )
    if found["totalBytes"]:
        print(f"{found['freeBytes']} of {found['totalBytes']} bytes are free")
    print(f"{found['ledgers']} ledgers name it, {found['openLedgers']} of them open")


async def _list(cluster: OpenCluster) -> list[dict[str, Any]]:
    known = set(await cluster.metadata.children(COOKIES_PATH))
    registered = await _registered(cluster)
    return [_row(bookie, registered.get(bookie)) for bookie in sorted(known | set(registered))]


async def _info(cluster: OpenCluster, bookie: str) -> dict[str, Any]:
    rows = {row["bookieId"]: row for row in await _list(cluster)}
    if bookie not in rows:
        raise CommandError(
            f"there is no bookie {bookie!r} in this cluster; `magnetar bookie list` names those that are"
        )
    row = dict(rows[bookie])
    row.update(freeBytes=0, totalBytes=0, ledgers=0, openLedgers=0)
    if row["state"] != LOST:
        answer = await cluster.provider.connection(bookie).info()
        row.update(freeBytes=answer.free_bytes, totalBytes=answer.total_bytes)
    async for metadata in every_ledger(cluster):
        if any(bookie in segment.ensemble for segment in metadata.segments):
            row["ledgers"] += 1
            row["openLedgers"] += not metadata.closed
    return row


LOST = "lost"


async def _registered(cluster: OpenCluster) -> dict[str, dict[str, Any]]:
    names = await cluster.metadata.children(AVAILABLE_PATH)
    records = await asyncio.gather(*(cluster.metadata.get(join(AVAILABLE_PATH, name)) for name in names))
    return {
        name: json_module.loads(record.value)
        for name, record in zip(names, records, strict=True)
        if record is not None
    }


def _row(bookie: str, registration: dict[str, Any] | None) -> dict[str, Any]:
    if registration is None:
        return {"bookieId": bookie, "state": LOST, "address": ""}
    return {
        "bookieId": bookie,
        "state": "readonly" if registration.get("read_only") else "writable",
        "address": registration["address"],
        **{
            name: registration[key]
            for key, name in (("domain", "domain"), ("rack", "rack"))
            if registration.get(key)
        },
    }
