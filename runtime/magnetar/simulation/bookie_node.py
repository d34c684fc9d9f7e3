"""A machine with a production bookie: its disk outlives its processes."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from magnetar.autorecovery.bookie_peers import BookiePeers
from magnetar.bookie.bookie import Bookie
from magnetar.bookie.errors import CookieMismatch
from magnetar.bookie.garbage import GarbageCollector
from magnetar.bookie.integrity import Integrity
from magnetar.bookie.mark import FILE_NAME as MARK_FILE
from magnetar.bookie.registration import BookieRegistration
from magnetar.bookie.settings import BookieSettings
from magnetar.environment.errors import DiskFailed
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.registry import LedgerRegistry
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.metadata.errors import StoreUnavailable
from magnetar.protocol.ledger_entry import EntryCorrupt, decode_entry
from magnetar.simulation.bookie_ways import SimulatedProvider
from magnetar.simulation.cluster import Cluster
from magnetar.simulation.disk import SimulatedDisk
from magnetar.simulation.machine import StoredIndex, simulated_machine
from magnetar.simulation.process_loop import Process, ProcessDied
from magnetar.simulation.store_session import SimulatedStore

KIB = 1024


class BookieNode:
    def __init__(self, cluster: Cluster, name: str) -> None:
        self.name = name
        self.outside = cluster.outside
        self.process: Process | None = None
        self.bookie: Bookie | None = None
        self.starts = 0
        self._mark = (b"", 0)
        """The journal's mark as it was last seen on the disk, and the segment it names."""
        self.directory = Path(f"/{name}")
        self._cluster = cluster
        dice = random.Random(cluster.dice.getrandbits(64))
        self.dice = dice
        self.disk = SimulatedDisk(dice)
        self.index = StoredIndex(dice)
        self.disk.on_remove = self._removed
        self._machine = simulated_machine(
            cluster.loop,
            self.disk,
            self.index,
            dice,
            lambda ledger_id: cluster.judge.forgotten(name, ledger_id),
        )
        self._store: SimulatedStore | None = None
        self._stop: Callable[[], Coroutine[Any, Any, None]] | None = None
        self.settings = BookieSettings(
            self.directory,
            journal_segment_bytes=dice.choice((12, 40, 96)) * KIB,
            journal_first_bytes=8 * KIB,
            write_cache_bytes=dice.choice((6, 24, 1024)) * KIB,
            waiting_adds_bytes=64 * KIB,
            add_wait_s=0.8,
            flush_interval_s=dice.choice((0.3, 1.0, 5.0)),
            read_cache_bytes=16 * KIB,
            read_ahead_bytes=dice.choice((0, 512, 4 * KIB)),
            entry_log_bytes=dice.choice((4, 12, 64)) * KIB,
            entry_log_cached_bytes=8 * KIB,
            entry_log_read_cached_bytes=8 * KIB,
            gc_interval_s=dice.choice((2.0, 5.0)),
            gc_grace_s=3.0,
            free_bytes_min=32 * KIB,
            reserve_bytes=16 * KIB,
            domain=dice.choice((name, name, name, "shared")),
            on_lost_data=dice.choice(("refuse", "limbo")),
        )

    @property
    def up(self) -> bool:
        return self.bookie is not None

    # Starting and dying.

    def start(self) -> None:
        """Begin a process on this machine, unless there is one or its disk is gone."""
        if self.process is not None or self.disk.gone:
            return
        self.starts += 1
        self.disk.life += 1
        self.process = Process(self._cluster.loop, self.name)
        self._cluster.history.told(f"{self.name} starts")
        self.process.run(self._boot(self.process))

    async def _boot(self, process: Process) -> None:
        cluster = self._cluster
        bookie = Bookie(
            self.settings,
            disk=self.disk,
            clock=cluster.clock,
            bookie_id=self.name,
            on_disk_failure=self._disk_failed,
            machine=self._machine,
        )
        try:
            await bookie.start()
        except Exception as error:
            cluster.history.told(f"{self.name} cannot start: {type(error).__name__}: {error}")
            self.refused(error)
            return
        await self._judge_memory(bookie)
        store = self._store = SimulatedStore(cluster, process)
        registration = BookieRegistration(store, bookie, f"{self.name}:3181", old_session_wait_s=1e9)
        store.whole_listings = True  # Who has lost what it held goes by what the metadata name, all of it.
        integrity: Integrity | None = None
        while True:
            try:
                await registration.check_cookie()
                if bookie.limbo.reason is not None:
                    cluster.judge.in_limbo(self.name)
                if integrity is None and (bookie.limbo or bookie.in_doubt is not None):
                    integrity = Integrity(bookie, self._peers(process, store), retry_s=1.0, look_s=2.0)
                    await integrity.prepare()
                    integrity.start()
                await registration.start()
                break
            except CookieMismatch as error:
                cluster.history.told(f"{self.name} is refused: {error}")
                cluster.judge.met["disks refused"] += 1
                cluster.judge.expect(
                    "I20", self.name in cluster.judge.rotten, f"{self.name} is refused: {error}"
                )
                self.die()
                return
            except (StoreUnavailable, LedgerError):
                if integrity is not None and not bookie.may_be_registered:
                    integrity = None
                await asyncio.sleep(0.3)
        store.whole_listings = False
        cluster.judge.serves(self.name)
        registry = LedgerRegistry(store, cluster.clock, self.dice, LedgerClientSettings())

        async def live() -> set[int]:
            return set(await registry.list())

        async def exists(ledger_id: int) -> bool:
            return await registry.get(ledger_id) is not None

        collector = GarbageCollector(bookie, live, exists=exists)
        collector.start()

        async def stop() -> None:
            await registration.stop()
            await collector.stop()
            if integrity is not None:
                await integrity.stop()
            await bookie.stop()

        self._stop = stop
        self.bookie = bookie
        cluster.history.told(f"{self.name} serves")

    def _peers(self, process: Process, store: SimulatedStore) -> BookiePeers:
        provider = SimulatedProvider(self._cluster, process, store, timeout_s=1.0)
        client = LedgerClient(
            store,
            provider,
            clock=self._cluster.clock,
            random=self.dice,
            settings=LedgerClientSettings(metadata_retry_s=3.0),
        )
        return BookiePeers(client.surroundings, self.name)

    async def judge_places(self, bookie: Bookie, count: int) -> None:
        """I13: what the index names is where it says, undamaged."""
        judge = self._cluster.judge
        places = [
            (each, entry_id) for each, held in sorted(self.index.ledgers.items()) for entry_id in sorted(held)
        ]
        for ledger_id, entry_id in places[:: max(1, len(places) // count)]:
            answer = await bookie.read_entry(ledger_id, entry_id)
            if ledger_id not in judge.metadata or entry_id not in self.index.ledgers.get(ledger_id, ()):
                continue
            good = answer.status.is_unknown
            if answer.status.is_positive:
                try:
                    decode_entry(answer.entry, expect_ledger=ledger_id, expect_entry=entry_id)
                    good = True
                except EntryCorrupt:
                    good = False
            judge.met["places judged"] += 1
            judge.expect(
                "I13",
                good,
                f"the index of {self.name} names entry {ledger_id}:{entry_id}, and the bookie answers"
                f" {answer.status.name}",
            )

    async def _judge_memory(self, bookie: Bookie) -> None:
        """I11, I12, I13: what it had answered before it died, it knows now."""
        judge = self._cluster.judge
        if self.name in judge.swapped:
            return
        for bookie_id, ledger_id in list(judge.fenced):
            if bookie_id == self.name and ledger_id in judge.metadata and bookie.limbo.reason is None:
                state = bookie._table.get(ledger_id)
                judge.expect(
                    "I11",
                    state is not None and state.fenced,
                    f"{self.name} had answered that ledger {ledger_id} is fenced, and after a restart it is not",
                )
        if self.name in judge.rotten:
            return
        await self.judge_places(bookie, 6)
        for ledger_id, entries in sorted(judge.bookie_has.get(self.name, {}).items()):
            if ledger_id not in judge.metadata:
                continue
            listed = await bookie.list_entries(ledger_id)
            missing = (
                [] if listed.status.is_unknown else [each for each in sorted(entries) if each not in listed]
            )
            judge.expect(
                "I12",
                not missing or ledger_id not in judge.metadata,
                f"{self.name} had acknowledged entries {missing[:5]} of ledger {ledger_id}, and lost them in a restart",
            )

    def refused(self, error: Exception) -> None:
        """It does not start. With a disk that is as it should be, that must not happen."""
        self.die()
        if isinstance(error, (DiskFailed, OSError)):
            self._cluster.loop.call_later(1.0, self.start, context=self.outside)
            return
        self._cluster.judge.expect(
            "I12", self.name in self._cluster.judge.rotten, f"{self.name} cannot start again: {error}"
        )

    def crash(self, *, power: bool, worst: bool = False) -> None:
        """The process is killed; with `power`, the page cache goes as well."""
        if self.process is None:
            return
        how = "loses power" if power else "is killed"
        self._cluster.history.told(f"{self.name} {how}")
        self.die()
        if power:
            self.disk.cut_power(worst=worst)
            self.index.cut_power(worst=worst)

    async def stop(self) -> None:
        """As a service is stopped by its operator: it has some seconds to end by itself."""
        process, stop = self.process, self._stop
        if process is None or process.stopped or self.bookie is None or stop is None:
            return
        self._cluster.history.told(f"{self.name} is stopped")
        self._cluster.judge.met["clean stops"] += 1
        await asyncio.wait([process.run(stop())], timeout=5.0)
        if self.process is process:
            self.die()

    def go_dark(self) -> None:
        """Lose power, and come back a little later."""
        self.crash(power=True, worst=True)
        self._cluster.loop.call_later(0.3, self.start, context=self.outside)

    def die(self) -> None:
        process, self.process, self.bookie = self.process, None, None
        self.disk.life += 1
        if process is not None:
            process.kill()
        store, self._store = self._store, None
        if store is not None:
            self._cluster.loop.call_later(
                self._cluster.dice.choice((0.2, 1.0, 2.0)), self._end, store, context=self.outside
            )

    def _end(self, store: SimulatedStore) -> None:
        self._cluster.loop.create_task(store.end())

    def lose_for_good(self) -> None:
        self._cluster.history.told(f"{self.name} is lost with its disk, for good")
        self.die()
        self.disk.gone = True

    def swap_disk(self) -> None:
        """Somebody puts an empty disk into the machine."""
        self._cluster.history.told(f"{self.name} gets an empty disk")
        self.crash(power=False)
        self.disk.become({})
        self.disk.directories.clear()
        self.index.clear()
        self._cluster.judge.disk_swapped(self.name)

    def _disk_failed(self, error: BaseException) -> None:
        self._cluster.history.told(f"{self.name} fails stop: {error}")
        self.crash(power=True)
        raise ProcessDied(str(error))

    def _removed(self, path: Path) -> None:
        if path.name.endswith(".journal") and self.bookie is not None:
            stored = self.disk.durable(self.directory / MARK_FILE)
            if stored is not None and stored != self._mark[0]:
                self._mark = (stored, int(json.loads(stored.partition(b"\n")[0])["segment"]))
            self._cluster.judge.file_removed(self.name, path.name, self._mark[1])
