"""Four bookies with real journals behind sockets; one comes back with an empty disk, or with last week's."""

from __future__ import annotations

import random
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from magnetar.autorecovery.bookie_peers import BookiePeers
from magnetar.bookie.bookie import Bookie
from magnetar.bookie.integrity import Integrity
from magnetar.bookie.registration import BookieRegistration
from magnetar.bookie.server import BookieServer
from magnetar.environment.clock import SystemClock
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.provider import MetadataBookieProvider
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.metadata.memory import MemoryEnsemble
from magnetar.protocol.bookie import AddFlags, BookieStatus, master_key
from magnetar.protocol.ledger_entry import LedgerEntry
from tests.unit.autorecovery.cluster import write
from tests.unit.bookie.workbench import begin_add, make_bookie, until

pytestmark = pytest.mark.integration

BOOKIES = ("b1", "b2", "b3", "b4")


@asynccontextmanager
async def client_of(ensemble: MemoryEnsemble) -> AsyncIterator[LedgerClient]:
    store = ensemble.connect()
    provider = MetadataBookieProvider(store)
    settings = LedgerClientSettings(ensemble_retry_s=0.2, quarantine_s=1)
    client = LedgerClient(store, provider, clock=SystemClock(), random=random.Random(1), settings=settings)
    try:
        yield client
    finally:
        await client.close()
        await provider.close()
        await store.close()


@asynccontextmanager
async def storing(ensemble: MemoryEnsemble, directory: Path, name: str) -> AsyncIterator[Bookie]:
    """A bookie as `magnetar bookie` runs it."""
    async with AsyncExitStack() as parts:
        bookie = make_bookie(directory / name, bookie_id=name, on_lost_data="limbo")
        await bookie.start()
        parts.push_async_callback(bookie.stop)
        store = ensemble.connect()
        parts.push_async_callback(store.close)
        server = BookieServer(bookie, "127.0.0.1", 0)
        port = await server.start()
        parts.push_async_callback(server.stop)
        registration = BookieRegistration(store, bookie, f"127.0.0.1:{port}")
        await registration.check_cookie()
        client = await parts.enter_async_context(client_of(ensemble))
        integrity = Integrity(bookie, BookiePeers(client.surroundings, name), retry_s=0.05)
        await integrity.prepare()
        await registration.start()
        parts.push_async_callback(registration.stop)
        integrity.start()
        parts.push_async_callback(integrity.stop)
        yield bookie


@pytest.mark.parametrize("disk", ["emptied", "an old copy"])
async def test_a_bookie_with_another_disk_gets_everything_back_while_its_writer_goes_on(
    tmp_path: Path, disk: str
) -> None:
    ensemble = MemoryEnsemble()
    async with AsyncExitStack() as others:
        for name in BOOKIES[1:]:
            await others.enter_async_context(storing(ensemble, tmp_path, name))
        client = await others.enter_async_context(client_of(ensemble))
        async with storing(ensemble, tmp_path, "b1"):
            ledgers = [await client.create(3, 2, 2) for _ in range(6)]
        shutil.copytree(tmp_path / "b1", tmp_path / "copy")
        async with storing(ensemble, tmp_path, "b1"):
            for writer in ledgers:
                await write(writer, 40)
            for writer in ledgers[:4]:
                await writer.close()
        shutil.rmtree(tmp_path / "b1")
        if disk == "an old copy":
            shutil.copytree(tmp_path / "copy", tmp_path / "b1")
            store = ensemble.connect()  # What a minute of running would have told metadata.
            record = await store.get("/ledgers/cookies/b1")
            assert record is not None
            await store.put("/ledgers/cookies/b1", record.value.replace(b'"sequence": ', b'"sequence": 9'))
            await store.close()

        async with storing(ensemble, tmp_path, "b1") as bookie:
            assert bookie.limbo.reason is not None
            for writer in ledgers[4:]:  # They meet a bookie that takes nothing, and go on with others.
                await write(writer, 40)
                await writer.close()
            await until(lambda: not bookie.limbo)
            peers = BookiePeers(client.surroundings, "b1")
            held = 0
            for ledger_id in await peers.ledgers():
                holdings = await peers.holdings(ledger_id)
                assert holdings is not None
                listed = await bookie.list_entries(ledger_id)
                assert listed.status is BookieStatus.OK
                for first, last in holdings.ranges:
                    for entry_id in range(first, last + 1):
                        assert entry_id in listed, (ledger_id, entry_id)
                        assert (await bookie.read_entry(ledger_id, entry_id)).status is BookieStatus.OK
                        held += 1
                late = begin_add(bookie, ledger_id, 10**6, key=master_key(), flags=AddFlags.NONE)
                if ledger_id in {writer.ledger_id for writer in ledgers[:4]}:
                    assert await late is BookieStatus.FENCED
            assert held > 40
        for writer in ledgers:
            reader = await client.open(writer.ledger_id, recover=False)
            entries: list[LedgerEntry] = []
            while len(entries) <= reader.last_confirmed:
                entries += await reader.read(len(entries), reader.last_confirmed)
            assert len(entries) == (80 if writer in ledgers[4:] else 40)
