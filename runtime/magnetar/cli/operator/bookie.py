"""`magnetar bookie list|info|...`: the bookies of a cluster."""

from __future__ import annotations

import asyncio
import dataclasses
import json as json_module
import os
import sys
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from magnetar.cli.errors import CommandError
from magnetar.cli.operator.ledger import every_ledger
from magnetar.cli.operator.store import (
    JsonOption,
    OpenCluster,
    StoreOption,
    run_command,
    show_json,
    show_table,
    with_cluster,
)
from magnetar.metadata.paths import join
from magnetar.protocol.bookie import AVAILABLE_PATH, COOKIES_PATH, READ_ONLY_WANTED_PATH

if TYPE_CHECKING:
    from magnetar.autorecovery.decommission import DecommissionProgress
    from magnetar.bookie.sanity import Problem

app = typer.Typer()

DataOption = Annotated[
    Path, typer.Option("--data", metavar="DIR", help="The directory that `magnetar bookie --data` was given.")
]
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


@app.command("sanity")
def sanity(data: DataOption = Path("data"), json: JsonOption = False) -> None:
    """Read all that a stopped bookie has stored, then add and read back entries. Status 1 if anything is wrong."""
    from magnetar.bookie.sanity import check, write_and_read

    directory = _bookie_directory(data)
    report = run_command(lambda: asyncio.to_thread(check, directory))
    problems = list(report.problems)
    if not problems:
        problems = run_command(lambda: write_and_read(directory))
    if json:
        found = {**dataclasses.asdict(report), "problems": [dataclasses.asdict(each) for each in problems]}
        show_json({_camel(name): value for name, value in {**found, "sane": not problems}.items()})
    else:
        print(
            f"bookie {report.bookie_id}: {report.entries} records in {report.entry_logs} entry logs, "
            f"{report.indexed} indexed, {report.ledgers} ledgers, {report.journal_records} journal records"
        )
        for problem in problems:
            print(_told(problem))
        print("all is well" if not problems else f"{len(problems)} problems")
    if problems:
        raise typer.Exit(1)


@app.command("format")
def format_bookie(
    data: DataOption = Path("data"),
    metadata_store: StoreOption = "",
    force: Annotated[
        bool, typer.Option("--force", help="Do not ask, and do not mind ledgers that name the bookie.")
    ] = False,
) -> None:
    """Empty a stopped bookie's directory; with --metadata-store, make the cluster forget it, too.

    Refused while ledgers name the bookie: decommission it first.
    """
    from magnetar.bookie.format import forget_bookie, format_directory

    directory = _bookie_directory(data)
    bookie = _bookie_id(data)
    if not force:
        if not metadata_store:
            raise CommandError(
                "whether ledgers name this bookie is not known: say --metadata-store, or --force to empty it all the same"
            )
        named = with_cluster(metadata_store, lambda cluster: naming(cluster, bookie))
        if named:
            raise CommandError(
                f"{named} ledgers name bookie {bookie}: empty it first with `magnetar bookie decommission {bookie}`, "
                "or say --force and lose those copies"
            )
        if sys.stdin.isatty():
            typer.confirm(f"Remove all that bookie {bookie} has stored in {directory}?", abort=True)
    if metadata_store:
        with_cluster(metadata_store, lambda cluster: require_away(cluster, bookie))
    removed = run_command(lambda: asyncio.to_thread(format_directory, directory))
    print(f"bookie {bookie}: {removed.files} files, {removed.bytes} bytes removed")
    if metadata_store:
        forgotten = with_cluster(metadata_store, lambda cluster: forget_bookie(cluster.metadata, bookie))
        print(f"bookie {bookie} is forgotten" if forgotten else f"the cluster did not know bookie {bookie}")


@app.command("readonly")
def readonly(
    bookie: BookieId,
    metadata_store: StoreOption = "",
    off: Annotated[bool, typer.Option("--off", help="Let it take entries again.")] = False,
) -> None:
    """Have a bookie take no new entries, also after restarts, until it is said with --off."""
    from magnetar.bookie.registration import set_read_only

    async def work(cluster: OpenCluster) -> None:
        await _require(cluster, bookie)
        await set_read_only(cluster.metadata, bookie, not off)

    with_cluster(metadata_store, work)
    print(f"bookie {bookie} {'may take entries again' if off else 'takes no new entries from now on'}")


@app.command("decommission")
def decommission(
    bookie: BookieId,
    metadata_store: StoreOption = "",
    cancel: Annotated[bool, typer.Option("--cancel", help="Keep the bookie after all.")] = False,
    wait_when_stuck: Annotated[
        bool, typer.Option("--wait", help="Go on also while nothing that is left can be moved.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Empty a bookie, alive or dead, and take it out of the cluster. Tells what is left, and ends when it is out.

    With --json, one document a line. Interrupted, it can be said again. Status 1 if it cannot be emptied now.
    """
    from magnetar.autorecovery import decommission as room

    async def work(cluster: OpenCluster) -> bool:
        if cancel:
            await require_trace(cluster, bookie)
            await room.cancel(cluster.metadata, bookie)
            print(f"bookie {bookie} stays")
            return True
        done = False
        steps = room.decommission(
            cluster.metadata,
            cluster.ledgers,
            cluster.provider,
            bookie,
            clock=cluster.clock,
            wait_when_stuck=wait_when_stuck,
        )
        async with aclosing(steps):  # type: ignore[type-var]  # It is a generator.
            async for step in steps:
                print(json_module.dumps(_progress(step)) if json else _in_words(step), flush=True)
                done = step.done
        return done

    if not with_cluster(metadata_store, work):
        raise typer.Exit(1)


@app.command("recover")
def recover(
    bookie: BookieId,
    metadata_store: StoreOption = "",
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Move on also where entries have no good copy left.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Copy by hand, from here, what a bookie held; workers are not needed. Status 1 if something was left."""
    from magnetar.autorecovery.operations import recover_bookie
    from magnetar.autorecovery.settings import AutorecoverySettings

    async def work(cluster: OpenCluster) -> int:
        left = 0
        async for step in recover_bookie(
            cluster.metadata,
            cluster.ledgers,
            cluster.provider,
            bookie,
            settings=AutorecoverySettings(),
            name=f"command-{os.getpid()}-{cluster.dice.getrandbits(32):08x}",
            accept_loss=accept_loss,
        ):
            left += bool(step.problem)
            if json:
                print(
                    json_module.dumps(
                        {_camel(name): value for name, value in dataclasses.asdict(step).items()}
                    ),
                    flush=True,
                )
            else:
                told = step.problem or f"{step.slots} copies made"
                print(f"{step.done}/{step.total}  ledger {step.ledger_id}: {told}", flush=True)
        return left

    if with_cluster(metadata_store, work):
        raise typer.Exit(1)


def _bookie_directory(data: Path) -> Path:
    """Of a data directory, or one that the bookie's settings name by itself."""
    from magnetar.bookie.directory import COOKIE_FILE

    directory = data if (data / COOKIE_FILE).is_file() else data / "bookie"
    if not directory.is_dir():
        raise CommandError(f"{data} is no data directory of a bookie: there is no {directory}")
    return directory


def _bookie_id(data: Path) -> str:
    from magnetar.bookie.directory import COOKIE_FILE, read_cookie
    from magnetar.environment.disk import SystemDisk

    async def read() -> str:
        return read_cookie(SystemDisk(), _bookie_directory(data) / COOKIE_FILE).bookie_id

    return run_command(read)


async def naming(cluster: OpenCluster, bookie: str) -> int:
    """How many ledgers name a bookie.

    Raises:
        CommandError: the store cannot know.
    """
    if not await cluster.metadata.exists(COOKIES_PATH):
        raise CommandError(
            "no bookie was ever recorded in this metadata store: ledgers may be recorded in another one; "
            "name that with --metadata-store"
        )
    count = 0
    async for metadata in every_ledger(cluster):
        count += any(bookie in segment.ensemble for segment in metadata.segments)
    return count


async def _require(cluster: OpenCluster, bookie: str) -> None:
    if bookie not in await cluster.provider.known():
        raise CommandError(
            f"there is no bookie {bookie!r} in this cluster; `magnetar bookie list` names those that are"
        )


async def require_away(cluster: OpenCluster, bookie: str) -> None:
    """Before its directory is emptied: afterwards the cluster would not forget it, and a second try find no name."""
    if await cluster.metadata.exists(join(AVAILABLE_PATH, bookie)):
        raise CommandError(
            f"bookie {bookie} is still registered: stop it, or wait until the session of its last process has ended"
        )


async def require_trace(cluster: OpenCluster, bookie: str) -> None:
    """A name mistyped must not look as if its bookie stayed. One that is out already may have notes left."""
    store = cluster.metadata
    traces = (COOKIES_PATH, AVAILABLE_PATH, READ_ONLY_WANTED_PATH)
    if not any([await store.exists(join(path, bookie)) for path in traces]):
        await _require(cluster, bookie)


def _progress(step: DecommissionProgress) -> dict[str, Any]:
    return {
        "bookieId": step.bookie,
        "done": step.done,
        "ledgersLeft": step.ledgers_left,
        "ledgersTotal": step.ledgers_total,
        "openLedgersLeft": step.open_left,
        "bytesLeft": step.bytes_left,
        "expectedS": step.expected_s,
        "workers": step.workers,
        "blocked": [{"ledgerId": each.ledger_id, "reason": str(each)} for each in step.blocked],
    }


def _in_words(step: DecommissionProgress) -> str:
    if step.done:
        return f"bookie {step.bookie} is out: no ledger names it"
    told = f"{step.ledgers_left} of {step.ledgers_total} ledgers left, about {step.bytes_left} bytes"
    if step.open_left:
        told += f", {step.open_left} of them open"
    if step.expected_s is not None:
        told += f"; expected to take {step.expected_s:.0f} s more"
    if not step.workers:
        told += "; nobody copies: start magnetar autorecovery"
    return "\n".join([told, *(f"  cannot be moved now: {each}" for each in step.blocked)])


def _told(problem: Problem) -> str:
    where = problem.file if problem.offset is None else f"{problem.file} at {problem.offset}"
    entry = "" if problem.ledger_id is None else f", entry {problem.ledger_id}:{problem.entry_id}"
    return f"{where}{entry}: {problem.what}"


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


async def _list(cluster: OpenCluster) -> list[dict[str, Any]]:
    known = set(await cluster.metadata.children(COOKIES_PATH))
    registered = await _registered(cluster)
    return [_row(bookie, registered.get(bookie)) for bookie in sorted(known | set(registered))]


async def _info(cluster: OpenCluster, bookie: str) -> dict[str, Any]:
    await _require(cluster, bookie)
    row = next(dict(row) for row in await _list(cluster) if row["bookieId"] == bookie)
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
