"""Ledgers and logs over three real bookie processes and TCP; the bookies are killed, the owners deposed."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import pytest

from magnetar.environment.clock import SystemClock
from magnetar.ledger.bookie_client import BookieClientSettings
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerError, LedgerFenced
from magnetar.ledger.provider import MetadataBookieProvider
from magnetar.ledger.reader import LedgerReader
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.ledger.underreplicated import UnderreplicatedLedgers
from magnetar.ledger.writer import LedgerWriter
from magnetar.managed_ledger import EARLIEST, ManagedLedger, ManagedLedgerConfig, Position
from magnetar.managed_ledger.errors import ManagedLedgerFenced
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.metadata.memory import MemoryEnsemble
from magnetar.protocol.bookie import AVAILABLE_PATH

pytestmark = pytest.mark.integration

NAME = "public/default/persistent/topic"
DEADLINE_S = 60


class BookieProcess:
    def __init__(self, bookie_id: str, directory: Path, metadata: MemoryEnsemble) -> None:
        self.bookie_id = bookie_id
        self._directory = directory
        self._store = metadata.connect()
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(Path(__file__).with_name("bookie_process.py")),
            str(self._directory),
            self.bookie_id,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert self._process.stdout is not None
        async with asyncio.timeout(DEADLINE_S):
            port = int(await self._process.stdout.readline())
        record = {"version": 1, "address": f"127.0.0.1:{port}", "incarnation": str(self._process.pid)}
        await self._store.put(f"{AVAILABLE_PATH}/{self.bookie_id}", json.dumps(record).encode())

    async def send(self, what: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(what)

    async def end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            await self._process.wait()
            self._process = None

    async def deregister(self) -> None:
        await self._store.delete(f"{AVAILABLE_PATH}/{self.bookie_id}")


class Cluster:
    def __init__(self, directory: Path) -> None:
        self.metadata = MemoryEnsemble()
        self._directory = directory
        self.bookies: dict[str, BookieProcess] = {}
        self._providers: list[MetadataBookieProvider] = []

    async def add_bookie(self, bookie_id: str) -> None:
        bookie = BookieProcess(bookie_id, self._directory / bookie_id, self.metadata)
        self.bookies[bookie_id] = bookie
        await bookie.start()

    def client(self, settings: LedgerClientSettings | None = None) -> LedgerClient:
        store = self.metadata.connect()
        provider = MetadataBookieProvider(
            store, settings=BookieClientSettings(request_timeout_s=5, backoff_max_s=0.2)
        )
        self._providers.append(provider)
        return LedgerClient(
            store,
            provider,
            clock=SystemClock(),
            random=random.Random(),
            settings=settings or LedgerClientSettings(ensemble_retry_s=0.2, quarantine_s=1),
        )

    def owner(self) -> ManagedLedgerFactory:
        return ManagedLedgerFactory(self.metadata.connect(), self.client(), clock=SystemClock())

    async def close(self) -> None:
        for provider in self._providers:
            await provider.close()
        for bookie in self.bookies.values():
            await bookie.end(signal.SIGKILL)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(tmp_path)
    try:
        await asyncio.gather(*(cluster.add_bookie(f"bookie-{number}") for number in range(3)))
        yield cluster
    finally:
        await cluster.close()


class Load:
    """Keeps 100 entries in flight until it is told to stop, or the writer ends."""

    def __init__(self, writer: LedgerWriter) -> None:
        self._writer = writer
        self._sent = 0
        self._running = True
        self.acked = 0
        self.errors: list[LedgerError] = []
        for _ in range(100):
            self._append()

    @property
    def in_flight(self) -> int:
        return self._sent - self.acked - len(self.errors)

    async def stop(self) -> int:
        """Stop, and wait until all are answered. Returns how many were acknowledged."""
        self._running = False
        await until(lambda: not self.in_flight)
        return self.acked

    def _append(self) -> None:
        self._writer.append((payload(self._sent),), self._done)
        self._sent += 1

    def _done(self, entry_id: int, error: LedgerError | None) -> None:
        if error is not None:
            self.errors.append(error)
            return
        assert entry_id == self.acked
        self.acked += 1
        if self._running:
            self._append()


def payload(number: int) -> bytes:
    return b"entry %d " % number * 30


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def read_all(reader: LedgerReader) -> list[bytes]:
    found: list[bytes] = []
    while len(found) <= reader.last_confirmed:
        found += [bytes(entry.payload) for entry in await reader.read(len(found), reader.last_confirmed)]
    return found


def payloads(number: int) -> list[bytes]:
    return [payload(each) for each in range(number)]


async def test_a_bookie_dies_under_load_and_another_client_recovers_all(cluster: Cluster) -> None:
    writer = await cluster.client().create(3, 3, 2)
    load = Load(writer)
    await until(lambda: load.acked > 500)
    assert load.in_flight
    await cluster.bookies["bookie-1"].end(signal.SIGKILL)
    reached = load.acked
    await until(lambda: load.acked > reached + 2000)

    reader = await cluster.client().open(writer.ledger_id, recover=True)
    await load.stop()
    assert isinstance(load.errors[0], LedgerFenced), "the old writer was stopped"
    assert reader.last_confirmed >= load.acked - 1
    assert await read_all(reader) == payloads(reader.last_confirmed + 1)


async def test_a_spare_takes_the_place_of_the_dead(cluster: Cluster) -> None:
    writer = await cluster.client().create(3, 3, 2)
    load = Load(writer)
    await until(lambda: load.acked > 200)
    await cluster.add_bookie("spare")
    await cluster.bookies["bookie-0"].end(signal.SIGKILL)
    await cluster.bookies["bookie-0"].deregister()
    await until(lambda: len(writer.metadata.segments) == 2)
    assert "spare" in writer.metadata.segments[-1].ensemble
    reached = load.acked
    await until(lambda: load.acked > reached + 300)
    await cluster.bookies["bookie-1"].end(signal.SIGKILL)
    reached = load.acked
    await until(lambda: load.acked > reached + 300)
    acked = await load.stop()
    assert not load.errors
    assert await writer.close() == acked - 1
    reader = await cluster.client().open(writer.ledger_id, recover=False)
    assert await read_all(reader) == payloads(acked)


async def test_what_was_acknowledged_survives_the_death_of_all_bookies(cluster: Cluster) -> None:
    writer = await cluster.client().create(3, 2, 2)
    load = Load(writer)
    await until(lambda: load.acked > 300)
    assert load.in_flight
    await asyncio.gather(*(bookie.end(signal.SIGKILL) for bookie in cluster.bookies.values()))
    await asyncio.gather(*(bookie.start() for bookie in cluster.bookies.values()))
    await load.stop()

    reader = await cluster.client().open(writer.ledger_id, recover=True)
    assert reader.last_confirmed >= load.acked - 1
    assert await read_all(reader) == payloads(reader.last_confirmed + 1)


class LogLoad:
    """Keeps 100 appends to a log in flight until the first one fails."""

    def __init__(self, log: ManagedLedger, life: int) -> None:
        self._log = log
        self._life = life
        self._sent = 0
        self.acked: list[bytes] = []
        self.errors: list[Exception] = []
        for _ in range(100):
            self._append()

    def _append(self) -> None:
        message = b"%d:%d" % (self._life, self._sent)
        self._sent += 1
        self._log.append((b"\x0e\x01", message), 1, partial(self._done, message))

    def _done(self, message: bytes, position: Position | None, index: int, error: Exception | None) -> None:
        if error is not None:
            self.errors.append(error)
            return
        self.acked.append(message)
        if not self.errors:
            self._append()


async def test_a_log_moves_from_owner_to_owner_while_bookies_die(cluster: Cluster) -> None:
    """Each owner is deposed under load by the next, and in each life one bookie is killed and comes back."""
    config = ManagedLedgerConfig(3, 3, 2, max_entries_per_ledger=500, min_rollover_s=0)
    loads: list[LogLoad] = []
    logs: list[ManagedLedger] = []
    for life in range(3):
        log = await cluster.owner().open(NAME, config)
        await log.open_cursor("subscription", initial="earliest")
        load = LogLoad(log, life)
        await reached(load, 200)
        victim = cluster.bookies[f"bookie-{life}"]
        await victim.end(signal.SIGKILL)
        await reached(load, 1200)
        await victim.start()
        loads.append(load)
        logs.append(log)

    last = await cluster.owner().open(NAME, config)
    for load in loads:
        await deposed(load)
        assert isinstance(load.errors[0], ManagedLedgerFenced)
    reader = await last.open_cursor("reader", durable=False, start=EARLIEST)
    found: list[bytes] = []
    indexes: list[int] = []
    while reader.has_more():
        entries = await reader.read(500, 1 << 20)
        found += [entry.data[2:] for entry in entries]
        indexes += [entry.index for entry in entries]
    assert indexes == list(range(len(indexes)))
    assert len(set(found)) == len(found), "an entry was stored twice"
    for life, load in enumerate(loads):
        assert set(load.acked) <= set(found), "something acknowledged is lost"
        mine = [int(each.split(b":")[1]) for each in found if each.startswith(b"%d:" % life)]
        assert mine == list(range(len(mine)))
    assert last.cursors["subscription"].backlog == len(found)
    with pytest.raises(ManagedLedgerFenced):
        await logs[0].open_cursor("too late")


async def reached(load: LogLoad, number: int) -> None:
    await until(lambda: len(load.acked) > number)


async def deposed(load: LogLoad) -> None:
    await until(lambda: bool(load.errors))


async def test_a_hung_bookie_is_replaced_and_what_it_lacks_is_marked(cluster: Cluster) -> None:
    """Stopped, not killed: its connection stays, and takes what is sent to it until the kernel is full."""
    await cluster.add_bookie("spare")
    client = cluster.client(LedgerClientSettings(replica_lag_s=1.5, unacknowledged_bytes=4 << 20))
    writer = await client.create(3, 3, 2)
    load = Load(writer)
    await until(lambda: load.acked > 300)
    victim = writer.metadata.segments[0].ensemble[0]
    await cluster.bookies[victim].send(signal.SIGSTOP)
    budget = client.surroundings.budget
    most = 0
    while len(writer.metadata.segments) == 1:
        await asyncio.sleep(0.01)
        most = max(most, budget.lagging_bytes)
    assert most < 8 << 20
    assert victim not in writer.metadata.segments[-1].ensemble
    reached = load.acked
    await until(lambda: load.acked > reached + 300)
    acked = await load.stop()
    assert not load.errors
    assert await writer.close() == acked - 1
    marks = UnderreplicatedLedgers(cluster.metadata.connect())
    await until(lambda: client.surroundings.marks.marked > 0)
    (mark,) = await marks.list()
    assert victim in mark.missing

    await cluster.bookies[victim].send(signal.SIGCONT)
    report = await cluster.client().verify(writer.ledger_id)
    assert not report.lost
    assert {fault.bookie for fault in report.faults} <= {victim}, (
        "only it may lack something, and that is marked"
    )
    assert report.length == writer.metadata.length
    reader = await cluster.client().open(writer.ledger_id, recover=False)
    assert await read_all(reader) == payloads(acked)


async def test_a_tail_reader_follows_a_writer_over_tcp(cluster: Cluster) -> None:
    writer = await cluster.client(LedgerClientSettings(explicit_lac_s=0.1)).create(3, 2, 2)
    reader = await cluster.client().open(writer.ledger_id, recover=False)
    load = Load(writer)
    seen = -1
    while seen < 500:
        seen = await reader.wait_for(seen, 10)
    acked = await load.stop()
    while seen < acked - 1:
        seen = await reader.wait_for(seen, 10)
    assert await read_all(reader) == payloads(acked)
    waiting = asyncio.create_task(reader.wait_for(seen, 60))
    await writer.close()
    assert await waiting == acked - 1
    assert reader.closed
