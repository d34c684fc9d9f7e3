"""What every operator's command shares: opening the cluster's stores, and one way to show and to fail."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from magnetar.autorecovery.errors import AutorecoveryError
from magnetar.bookie.errors import BookieError
from magnetar.cli.cluster_identity import ClusterIdentity, read_identity
from magnetar.cli.errors import CommandError
from magnetar.environment.clock import SystemClock
from magnetar.environment.errors import DirectoryInUse, DiskError
from magnetar.ledger.errors import LedgerError
from magnetar.managed_ledger.errors import ManagedLedgerError
from magnetar.metadata.errors import MetadataError
from magnetar.metadata.opening import open_store

if TYPE_CHECKING:
    from magnetar.ledger.client import LedgerClient
    from magnetar.ledger.provider import MetadataBookieProvider
    from magnetar.managed_ledger.records import LogRecord
    from magnetar.metadata.store import MetadataStore

T = TypeVar("T")

_REFUSALS = (
    MetadataError,
    LedgerError,
    ManagedLedgerError,
    BookieError,
    AutorecoveryError,
    DirectoryInUse,
    DiskError,
)

StoreOption = Annotated[
    str,
    typer.Option(
        "--metadata-store",
        envvar="MAGNETAR_METADATA_STORE",
        metavar="URL",
        help="zk:host:2181,host:2181/chroot, etcd:host:2379/prefix or rocksdb:/directory",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@dataclass(frozen=True, slots=True)
class OpenCluster:
    """A cluster's ledgers and bookies, as long as a command runs."""

    metadata: MetadataStore
    identity: ClusterIdentity
    provider: MetadataBookieProvider
    ledgers: LedgerClient
    clock: SystemClock
    dice: random.Random


@asynccontextmanager
async def open_cluster(url: str) -> AsyncIterator[OpenCluster]:
    """
    Raises:
        CommandError: no such store was given, or it is nobody's yet.
        MetadataError: it cannot be opened.
    """
    from magnetar.ledger.client import LedgerClient
    from magnetar.ledger.provider import MetadataBookieProvider

    if not url:
        raise CommandError("where is the metadata store? Say --metadata-store zk:host:2181")
    async with AsyncExitStack() as parts:
        metadata = await open_store(url)
        parts.push_async_callback(metadata.close)
        identity = await read_identity(metadata)
        if identity is None:
            raise CommandError(
                f"the metadata store {url} belongs to no cluster: correct --metadata-store, or make one with "
                f"magnetar metadata init --metadata-store {url} --cluster NAME"
            )
        clock, dice = SystemClock(), random.Random()
        provider = MetadataBookieProvider(metadata, dice=dice)
        parts.push_async_callback(provider.close)
        ledgers = LedgerClient(metadata, provider, clock=clock, random=dice)
        parts.push_async_callback(ledgers.close)
        yield OpenCluster(metadata, identity, provider, ledgers, clock, dice)


async def read_log(metadata: MetadataStore, name: str) -> LogRecord | None:
    """The record of a managed ledger with all its ledgers; None where there is none."""
    from magnetar.managed_ledger.chapters import ChapterMissing, ChapterStore
    from magnetar.managed_ledger.records import decode_log, log_path

    while True:
        record = await metadata.get(log_path(name))
        if record is None:
            return None
        try:
            return await ChapterStore(metadata).with_chapters(name, decode_log(name, record.value))
        except ChapterMissing:
            if await metadata.get(log_path(name)) == record:
                raise CommandError(
                    f"a part of the list of ledgers of {name} is missing in the store"
                ) from None


def with_cluster(url: str, work: Callable[[OpenCluster], Awaitable[T]]) -> T:
    """Run `work` on the cluster, and turn what can go wrong into one line for the user."""

    async def run() -> T:
        async with open_cluster(url) as cluster:
            return await work(cluster)

    return run_command(run)


def run_command(work: Callable[[], Awaitable[T]]) -> T:
    """Run a command that waits.

    Raises:
        CommandError: in place of the platform's own errors.
    """

    async def run() -> T:
        return await work()

    try:
        return asyncio.run(run())
    except _REFUSALS as error:
        raise CommandError(str(error)) from error


def show_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, empty: str) -> None:
    """Lines with columns one below the other; `empty` where there are none."""
    if not rows:
        print(empty)
        return
    lines = [tuple(columns), *(tuple(str(cell) for cell in row) for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def show_json(value: Any) -> None:
    """One JSON document on standard output."""
    print(json.dumps(value, indent=2))
