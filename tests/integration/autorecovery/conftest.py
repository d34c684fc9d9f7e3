"""Real bookies and autorecoveries over a real ZooKeeper, and a ledger client in the test's own process."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from magnetar.environment.clock import SystemClock
from magnetar.ledger.bookie_client import BookieClientSettings
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.provider import MetadataBookieProvider
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.ledger.underreplicated import UnderreplicatedLedgers
from magnetar.ledger.writer import LedgerWriter
from magnetar.metadata.opening import open_store
from magnetar.metadata.store import MetadataStore
from magnetar.protocol.bookie import BookieStatus
from magnetar.protocol.ledger_entry import decode_entry
from magnetar.testing.processes import MagnetarProcess

DEADLINE_S = 60.0
MAGNETAR = str(Path(sys.executable).with_name("magnetar"))


class RealCluster:
    """Processes by name, each stopped when the test ends."""

    def __init__(self, directory: Path, url: str) -> None:
        self.directory = directory
        self.url = f"{url}?session_timeout_s=2"
        self.bookies: dict[str, MagnetarProcess] = {}
        self.autorecoveries: dict[str, MagnetarProcess] = {}
        self._providers: list[MetadataBookieProvider] = []
        self.store: MetadataStore
        self.provider: MetadataBookieProvider
        self.client: LedgerClient
        self.marks: UnderreplicatedLedgers

    async def start(self, bookies: int) -> None:
        init = [MAGNETAR, "metadata", "init", "--metadata-store", self.url, "--cluster", "test"]
        done = await asyncio.to_thread(subprocess.run, init, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        self.store = await open_store(self.url)
        self.client, self.provider = self.another_client()
        self.marks = UnderreplicatedLedgers(self.store)
        await asyncio.gather(*(self.start_bookie(f"bookie-{number}") for number in range(bookies)))

    def another_client(self) -> tuple[LedgerClient, MetadataBookieProvider]:
        provider = MetadataBookieProvider(self.store, settings=BookieClientSettings(backoff_max_s=0.2))
        self._providers.append(provider)
        settings = LedgerClientSettings(ensemble_retry_s=0.2, quarantine_s=1)
        client = LedgerClient(
            self.store, provider, clock=SystemClock(), random=random.Random(), settings=settings
        )
        return client, provider

    async def start_bookie(self, name: str) -> None:
        """A new one, or one that was killed, with its data."""
        process = self.bookies.get(name)
        if process is None:
            arguments = ["bookie", "--metadata-store", self.url, "--data", str(self.directory / name)]
            environment = {"MAGNETAR_BOOKIE_ID": name, "MAGNETAR_BOOKIE_AUTORECOVERY": "false"}
            process = MagnetarProcess(
                [*arguments, "--port", "0"], self.directory / f"{name}.log", environment
            )
            self.bookies[name] = process
        await asyncio.to_thread(process.start)

    async def start_autorecovery(
        self, name: str, *, delay_s: float = 0.0, crash: str = "", **settings: str
    ) -> MagnetarProcess:
        """Args: `crash`: a crash point at which it dies, `NAME:N`."""
        environment = {
            "MAGNETAR_AUTORECOVERY__LOST_BOOKIE_RECOVERY_DELAY_S": str(delay_s),
            "MAGNETAR_AUTORECOVERY__OPEN_LEDGER_GRACE_S": "2",
            "MAGNETAR_AUTORECOVERY__WORKERS_IDLE_S": "1",
            "MAGNETAR_AUTORECOVERY__RETRY_S": "0.5",
            "MAGNETAR_CRASH_POINT": crash,
            **{f"MAGNETAR_AUTORECOVERY__{key.upper()}": value for key, value in settings.items()},
        }
        process = MagnetarProcess(
            ["autorecovery", "--metadata-store", self.url, "--port", "0"],
            self.directory / f"{name}.log",
            environment,
        )
        self.autorecoveries[name] = process
        await asyncio.to_thread(process.start)
        return process

    async def stop(self) -> None:
        for process in [*self.autorecoveries.values(), *self.bookies.values()]:
            if process.alive():
                await asyncio.to_thread(process.kill)
        for name, process in self.autorecoveries.items():  # Shown where a test has failed.
            sys.stdout.write(f"{name}:\n{process.log_tail(60)}\n")
        for provider in self._providers:
            await provider.close()
        await self.store.close()

    # What tests do.

    async def closed_ledger(self, ensemble: int, write: int, ack: int, entries: int = 200) -> int:
        writer = await self.client.create(ensemble, write, ack)
        await append(writer, entries)
        await writer.close()
        return writer.ledger_id

    async def names(self, ledger_id: int) -> set[str]:
        metadata = await self.client.metadata_of(ledger_id)
        return {bookie for segment in metadata.segments for bookie in segment.ensemble}

    async def read_every_replica(self, ledger_id: int) -> int:
        """Every entry from each bookie that the metadata name for it, verified and compared. How many entries."""
        metadata = await self.client.metadata_of(ledger_id)
        assert metadata.closed
        for entry_id in range(metadata.last_entry + 1):
            for bookie in metadata.fragment_of(entry_id).write_set(entry_id):
                answer = await self.provider.connection(bookie).read_entry(ledger_id, entry_id)
                assert answer.status is BookieStatus.OK, (bookie, entry_id, answer.status)
                entry = decode_entry(answer.entry, expect_ledger=ledger_id, expect_entry=entry_id)
                assert bytes(entry.payload) == payload(entry_id), (bookie, entry_id)
        return metadata.last_entry + 1

    async def no_marks(self) -> bool:
        return not await self.marks.ids()

    async def marked(self) -> bool:
        return bool(await self.marks.ids())

    async def none_names(self, bookie: str) -> bool:
        """Whether no ledger names a bookie, and nothing is marked."""
        for ledger_id in await self.client.list():
            if bookie in await self.names(ledger_id):
                return False
        return await self.no_marks()


def payload(entry_id: int) -> bytes:
    return b"entry %d " % entry_id * 40


async def append(writer: LedgerWriter, entries: int) -> None:
    """Append and wait for all acknowledgements."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    left = entries

    def answered(entry_id: int, error: LedgerError | None) -> None:
        nonlocal left
        left -= 1
        if error is not None and not done.done():
            done.set_exception(error)
        elif not left and not done.done():
            done.set_result(None)

    first = writer.last_add_confirmed + 1
    for number in range(first, first + entries):
        writer.append((payload(number),), answered)
    async with asyncio.timeout(DEADLINE_S):
        await done


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.1)


@pytest.fixture
async def cluster(tmp_path: Path, zookeeper_url: str) -> AsyncIterator[RealCluster]:
    """Four bookies, and nobody who repairs yet."""
    cluster = RealCluster(tmp_path, zookeeper_url)
    try:
        await cluster.start(4)
        yield cluster
    finally:
        await cluster.stop()
