"""Bookies and daemons come, go and die at any step, answers are lost, and what is copied is whole in the end.

At every change of a ledger's metadata: a bookie that takes a slot holds, durably, all that lies in it (I18).
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from magnetar.autorecovery.autorecovery import Autorecovery
from magnetar.autorecovery.extents import extents
from magnetar.environment import crash
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.metadata import LedgerMetadata, decode_metadata, ledger_id_of
from magnetar.ledger.registry import DATA_PATH
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.ledger.underreplicated import MARKS_PATH
from magnetar.ledger.writer import LedgerWriter
from magnetar.protocol.ledger_entry import decode_entry
from magnetar.simulation.bookies import BookieFaults, MemoryBookies
from magnetar.simulation.metadata import FaultyStore, MetadataFaults
from tests.unit.autorecovery.cluster import SETTINGS, Cluster, until, write

HASTE = replace(
    SETTINGS,
    lost_bookie_recovery_delay_s=3,
    open_ledger_grace_s=2,
    workers_idle_s=2,
    retry_s=0.5,
    retry_max_s=4,
    copy_batch_entries=4,
    ledger_check_interval_s=40,
)
BAD_WAYS = BookieFaults(drop=0.02, fail=0.02, corrupt=0.02, delay_s=0.01, timeout_s=0.5)
BAD_STORE = MetadataFaults(lost_request=0.02, lost_answer=0.02, delay_s=0.01)


class Dead(BaseException):
    """The process is no more."""


class WatchedStore(FaultyStore):
    """Tells the world when a mark is taken away."""

    def __init__(self, world: World, faults: MetadataFaults) -> None:
        super().__init__(world.cluster.connect(), world.dice, faults, world.stored)
        self._world = world

    async def delete(self, path: str, *, expected_version: int | None = None) -> None:
        async def delete() -> None:
            await self._store.delete(path, expected_version=expected_version)
            if path.startswith(f"{MARKS_PATH}/"):
                self._world.cleared(ledger_id_of(path))

        await self._ask(delete, changes=True)


class World:
    """A cluster, its daemons, and the watch over the metadata."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.cluster = Cluster(7)
        self.known: dict[int, LedgerMetadata] = {}
        self.daemons: dict[str, tuple[Autorecovery, FaultyStore, MemoryBookies]] = {}
        self.ended: list[Autorecovery] = []
        self.substitutions = 0
        self.passed: set[str] = set()
        self.violations: list[str] = []
        self.away_since: dict[str, float] = {}
        self._named = 0

    def start_daemon(self, faults: bool = True) -> None:
        self._named += 1
        name = f"daemon-{self._named}"
        store = WatchedStore(self, BAD_STORE if faults else MetadataFaults())
        view = MemoryBookies(self.cluster.bookies, self.dice, BAD_WAYS if faults else BookieFaults())
        ledgers = LedgerClient(
            store,
            view,
            clock=self.cluster.clock,
            random=self.dice,
            settings=LedgerClientSettings(quarantine_s=1, metadata_retry_s=2),
        )
        daemon = Autorecovery(
            store, ledgers, view, clock=self.cluster.clock, dice=self.dice, settings=HASTE, name=name
        )
        daemon.start()
        self.daemons[name] = (daemon, store, view)

    def kill_daemon(self, name: str) -> None:
        """Nothing it sends arrives any more, and its session is over."""
        daemon, store, view = self.daemons.pop(name)
        store.cut = True
        for bookie in self.cluster.bookies:
            view.connection(bookie).cut = True
        store._store.expire()
        self.ended.append(daemon)

    def passing(self, point: str) -> None:
        """A daemon passes a crash point: some die there."""
        self.passed.add(point)
        task = asyncio.current_task()
        name = "" if task is None else task.get_name().rpartition(" ")[2]
        if name in self.daemons and self.dice.random() < 0.05:
            self.kill_daemon(name)
            raise Dead

    def stored(self, path: str, value: bytes) -> None:
        if not path.startswith(f"{DATA_PATH}/"):
            return
        ledger_id = ledger_id_of(path)
        before, after = self.known.get(ledger_id), decode_metadata(ledger_id, value)
        self.known[ledger_id] = after
        if before is None:
            return
        settled = before.segments if before.closed else before.segments[:-1]
        new = {segment.first_entry: segment for segment in after.segments}
        for segment in settled:
            changed = [
                slot
                for slot, bookie in enumerate(segment.ensemble)
                if new[segment.first_entry].ensemble[slot] != bookie
            ]
            self.substitutions += len(changed)
            extent = next(each for each in extents(after, 1 << 60) if each.first_entry == segment.first_entry)
            for slot in changed:
                bookie = self.cluster.bookies[extent.ensemble[slot]]
                for first, last in extent.stripe(slot):
                    for entry in range(first, last + 1):
                        if not bookie.holds(ledger_id, entry):
                            self.violations.append(
                                f"I18: {bookie.bookie_id} named without {ledger_id}:{entry}"
                            )

    def cleared(self, ledger_id: int) -> None:
        """A mark is gone: each copy that the metadata name is there, if its bookie was there a moment ago (I19)."""
        metadata = self.known[ledger_id]
        now = self.cluster.clock.monotonic()
        for extent in extents(metadata, 1 << 60):
            for slot, name in enumerate(extent.ensemble):
                if now - self.away_since.get(name, now) > 1:
                    self.violations.append(f"I19: {ledger_id} cleared and names {name}, which is away")
                entries = self.cluster.bookies[name].ledger(ledger_id).entries
                for first, last in extent.stripe(slot):
                    for entry in range(first, last + 1):
                        if entry not in entries and name not in self.away_since:
                            self.violations.append(f"I19: {ledger_id} cleared without {entry} on {name}")

    async def write_some(self, client: LedgerClient) -> LedgerWriter | None:
        quorum = self.dice.choice((2, 3))
        try:
            writer = await client.create(self.dice.choice((3, quorum)), quorum, 2)
            await write(writer, self.dice.randrange(1, 25))
            if self.dice.random() < 0.3:
                return writer
            await writer.close()
        except LedgerError:
            return None  # Too many bookies were away at the moment, or a daemon fenced it.
        return None


async def story(world: World) -> None:
    dice, cluster = world.dice, world.cluster
    for name in list(cluster.bookies):
        await cluster.start(name)
    writing = FaultyStore(cluster.connect(), dice, MetadataFaults(), world.stored)
    client = LedgerClient(
        writing,
        MemoryBookies(cluster.bookies, dice, BookieFaults(delay_s=0.005)),
        clock=cluster.clock,
        random=dice,
        settings=LedgerClientSettings(ensemble_retry_s=0.2, quarantine_s=1),
    )
    opened = [await world.write_some(client) for _ in range(6)]
    world.start_daemon()
    world.start_daemon()
    away: str | None = None
    for _ in range(14):
        await asyncio.sleep(dice.random() * 8)
        match dice.choice(("bookie", "bookie", "daemon", "write", "start")):
            case "bookie" if away is None:
                away = dice.choice(sorted(cluster.bookies))
                await cluster.kill(away)
                world.away_since[away] = cluster.clock.monotonic()
            case "bookie" if away is not None:
                await cluster.start(away)
                del world.away_since[away]
                away = None
            case "daemon" if world.daemons:
                world.kill_daemon(dice.choice(sorted(world.daemons)))
            case "write":
                opened.append(await world.write_some(client))
            case _ if len(world.daemons) < 3:
                world.start_daemon()
    crash.observe(None)
    for name in sorted(world.daemons):
        world.kill_daemon(name)
    world.start_daemon(faults=False)
    (last,) = world.daemons.values()
    for writer in opened:
        if writer is not None:
            await asyncio.gather(writer.close(), return_exceptions=True)
    await asyncio.sleep(60)  # A check of all ledgers lies within.

    async def quiet() -> bool:
        return not await cluster.marks.ids()

    await until(quiet, 600)
    for ledger_id in await client.list():
        metadata = await client.metadata_of(ledger_id)
        assert metadata.closed
        for entry in range(metadata.last_entry + 1):
            copies = set()
            for name in metadata.fragment_of(entry).write_set(entry):
                bookie = cluster.bookies[name]
                assert bookie.up, f"ledger {ledger_id} names {name}, which is away"
                assert bookie.holds(ledger_id, entry), (ledger_id, entry, name)
                stored = bookie.ledgers[ledger_id].entries[entry]
                decode_entry(stored, expect_ledger=ledger_id, expect_entry=entry)
                copies.add(stored[36:])
            assert copies == {b"entry %d" % entry}
    await last[0].stop()
    assert not world.violations
    for daemon in world.ended:
        await asyncio.gather(daemon.worker.stop(), daemon.auditor.stop(), return_exceptions=True)


@pytest.mark.parametrize("seed", range(25))
def test_whatever_dies_all_copies_are_whole_in_the_end(seed: int) -> None:
    world = World(seed)
    crash.observe(world.passing)
    try:
        world.cluster.loop.run(story(world))
    finally:
        crash.observe(None)
