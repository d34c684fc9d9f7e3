"""What befalls the machines and processes of a `StorageWorld`, drawn from its seed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from magnetar.simulation.bookie_node import BookieNode
from magnetar.simulation.cluster import Weather
from magnetar.simulation.process_loop import Process, ProcessDied, inside

if TYPE_CHECKING:
    from magnetar.simulation.storage_world import StorageWorld

BOOKIE_CRASH_POINTS = (
    "bookie.add.cached",
    "bookie.journal.before_sync",
    "bookie.journal.after_sync",
    "bookie.flush.middle",
    "bookie.flush.log_synced",
    "bookie.flush.index_synced",
    "bookie.mark.before_write",
    "bookie.mark.after_write",
    "bookie.compaction.copied",
    "bookie.compaction.middle",
    "bookie.compaction.before_remove",
)
OWNER_CRASH_POINTS = (
    "ledger.in_recovery",
    "ledger.before_close",
    "managed_ledger.before_list_update",
    "managed_ledger.after_list_update",
    "managed_ledger.before_trim",
    "managed_ledger.after_trim",
    "cursor.before_record",
)

REPAIRER_CRASH_POINTS = (
    "autorecovery.before_copy",
    "autorecovery.chunk_copied",
    "autorecovery.before_rename",
    "autorecovery.renamed",
    "autorecovery.before_clear",
    "autorecovery.marked_one",
)
RARER_CRASH_POINTS = (
    "bookie.journal.segment_written",
    "bookie.journal.segment_synced",
    "bookie.journal.segment_renamed",
    "bookie.journal.segment_ready",
    "bookie.journal.spare_written",
    "bookie.journal.spare_synced",
    "bookie.journal.before_release",
    "bookie.journal.released",
    "bookie.log.written",
    "bookie.log.created",
    "bookie.log.before_seal",
    "bookie.log.sealed",
    "bookie.log.before_map_sync",
    "bookie.log.mapped",
    "bookie.flush.indexed",
    "bookie.index.doubt_ended",
    "bookie.index.caught_up",
    "bookie.ledgers.before_remove",
    "bookie.ledgers.before_rewrite",
    "bookie.ledgers.after_rewrite",
    "bookie.ledgers.before_sync",
    "bookie.ledgers.after_sync",
    "bookie.ledgers_deleted.before_index",
    "bookie.ledgers_deleted.index_synced",
    "bookie.compaction.removed",
    "bookie.compaction.removal_synced",
    "bookie.rescue.copied",
    "bookie.limbo.before_write",
    "bookie.limbo.after_write",
)
"""Of bookies. Many stories do not come by them."""
RARER_OWNER_CRASH_POINTS = (
    "managed_ledger.before_doomed_delete",
    "cursor.after_record",
    "cursor.ledger_created",
)


class Troubles:
    def __init__(self, world: StorageWorld) -> None:
        self._world = world
        self._most = world.dice.randint(10, 40)
        self.count = 0
        self._planned_crash: dict[str, tuple[str, int]] = {}
        """Process → the crash point it is to die at, and at which passage."""
        self.over = False
        self._unlucky: str | None = None
        """The one bookie that may lose what it has: more would be more than is promised."""

    async def go_on(self) -> None:
        """For a while one thing happens after the other."""
        while self.count < self._most and not self.over:
            await asyncio.sleep(self._world.dice.random() * self._world.dice.choice((0.2, 1.0, 2.0)))
            await self.one()

    def end(self) -> None:
        """All is well again, save what is lost for good."""
        cluster = self._world.cluster
        self.over = True
        self._world.told("all is well again")
        cluster.cut = set()
        cluster.store_down = False
        cluster.dark_after_fence = ""
        cluster.weather = Weather(delay_s=0.001)
        for node in cluster.nodes.values():
            node.disk.fail_syncs = 0
            node.disk.slow_until = 0.0
            node.disk.capacity = 1 << 40
            if node.process is not None:
                node.process.resume()
            elif not node.disk.gone:
                node.start()
        for client in self._world.clients:
            client.process.resume()

    async def one(self) -> None:
        self.count += 1
        await self._world.dice.choice(_FAULTS)(self)

    async def fault_crash_bookie(self) -> None:
        node = self._any_node()
        node.crash(power=self._world.dice.random() < 0.6, worst=self._world.dice.random() < 0.5)
        self._restart_later(node)

    async def fault_crash_point(self) -> None:
        node = self._any_node()
        self._planned_crash[node.name] = (
            self._world.dice.choice(
                BOOKIE_CRASH_POINTS if self._world.dice.random() < 0.6 else RARER_CRASH_POINTS
            ),
            self._world.dice.randint(1, 3),
        )

    async def fault_repairer_crash_point(self) -> None:
        repairers = [each for each in self._world.clients if each.name.startswith("autorecovery")]
        alive = [each.name for each in repairers if each.process.alive]
        if alive:
            point = self._world.dice.choice(REPAIRER_CRASH_POINTS)
            self._planned_crash[self._world.dice.choice(alive)] = (point, self._world.dice.randint(1, 2))

    async def fault_owner_crash_point(self) -> None:
        if self._world.owners:
            points = OWNER_CRASH_POINTS if self._world.dice.random() < 0.7 else RARER_OWNER_CRASH_POINTS
            point = self._world.dice.choice(points)
            owner = self._world.owners[-1].name
            if point.startswith("ledger."):  # Recoveries are what the next owner begins with.
                owner = f"owner-{len(self._world.owners)}"
            self._planned_crash[owner] = (point, self._world.dice.randint(1, 2))

    async def fault_restart_bookie(self) -> None:
        """By its operator: it ends by itself."""
        node = self._any_node()
        await node.stop()
        self._restart_later(node)

    async def fault_restart_repairer(self) -> None:
        world = self._world
        repairers = [each for each in world.clients if each.name.startswith("autorecovery")]
        for client in repairers:
            if client.process.alive and not client.process.stopped and client.stop is not None:
                world.told(f"{client.name} is stopped")
                await asyncio.wait([client.process.run(client.stop())], timeout=3.0)
                client.kill()
                world.cluster.loop.call_later(
                    0.5, world.repairer_again, client, context=world.cluster.outside
                )
                return

    async def fault_site_loses_power(self) -> None:
        worst = self._world.dice.random() < 0.5
        self._world.told("the site loses power")
        for node in self._world.cluster.nodes.values():
            node.crash(power=True, worst=worst)
            self._restart_later(node)
        if self._world.dice.random() < 0.5:
            for owner in self._world.owners:
                owner.kill()

    async def fault_stop_bookie(self) -> None:
        node = self._any_node()
        if node.process is not None:
            self._stop(node.process, self._world.dice.choice((0.5, 3.0, 20.0)))

    async def fault_stop_owner(self) -> None:
        if self._world.owners:
            self._stop(self._world.owners[-1].process, self._world.dice.choice((0.3, 2.0, 60.0)))

    async def fault_kill_owner(self) -> None:
        if self._world.owners and self._world.owners[-1].process.alive:
            owner = self._world.owners[-1]
            self._world.told(f"{owner.name} is killed")
            owner.kill()

    async def fault_cut(self) -> None:
        """Some cannot reach some others, in one direction or both."""
        dice, cluster = self._world.dice, self._world.cluster
        clients = [each.name for each in self._world.clients[-6:] if each.process.alive]
        bookies = list(cluster.nodes)
        cut: set[tuple[str, str]] = set()
        for client in clients:
            for bookie in bookies:
                draw = dice.random()
                if draw < 0.25:
                    cut.add((client, bookie))
                elif draw < 0.4:
                    cut.add((bookie, client))
            if dice.random() < 0.15:
                cut.add((client, "metadata"))
        self._world.told(f"ways are cut: {' '.join(sorted(f'{a}>{b}' for a, b in cut))}")
        cluster.cut = cut
        cluster.loop.call_later(dice.choice((0.2, 1.0, 4.0)), self._mend, cut, context=cluster.outside)

    async def fault_store_down(self) -> None:
        self._world.told("the metadata store cannot be reached")
        self._world.cluster.store_down = True
        self._world.cluster.loop.call_later(
            self._world.dice.choice((0.1, 0.5, 4.0)), self._store_back, context=self._world.cluster.outside
        )

    async def fault_expire(self) -> None:
        alive = [each for each in self._world.clients if each.process.alive]
        if alive:
            client = self._world.dice.choice(alive)
            self._world.told(f"the session of {client.name} expires")
            client.store.expire()

    async def fault_slow_disk(self) -> None:
        node = self._any_node()
        node.disk.slow_s = self._world.dice.choice((0.05, 0.5))
        node.disk.slow_until = self._world.loop.now + self._world.dice.choice((1.0, 5.0))
        self._world.told(f"the disk of {node.name} is slow")

    async def fault_full_disk(self) -> None:
        node = self._any_node()
        self._world.told(f"the disk of {node.name} is full")
        node.disk.capacity = node.disk.used + self._world.dice.choice((0, 20, 40)) * 1024
        self._world.cluster.loop.call_later(2.0, self._enlarge, node, context=self._world.cluster.outside)

    async def fault_sync_fails(self) -> None:
        node = self._any_node()
        node.disk.fail_syncs = 1
        self._restart_when_dead(node)

    async def fault_index_lost(self) -> None:
        node = self._any_node()
        self._world.told(f"{node.name} loses its index")
        node.crash(power=False)
        node.index.clear()
        self._restart_later(node)

    async def fault_rot(self) -> None:
        """A bit flips in an entry log of the one unlucky bookie."""
        node = self._unlucky_node()
        if node is None or node.disk.gone:
            return
        files = [each for each in node.disk.files(node.directory / "entries") if each[1] > 100]
        if files:
            path, size = self._world.dice.choice(files)
            offset = self._world.dice.randrange(size)
            self._world.judge.rotten.add(node.name)
            node.disk.flip(path, offset, self._world.dice.randrange(8))
            self._world.told(f"a bit flips in {path} at {offset}")

    async def fault_lose_bookie(self) -> None:
        node = self._unlucky_node()
        if node is not None and not node.disk.gone and self._world.dice.random() < 0.5:
            node.lose_for_good()
            self._world.judge.rotten.add(node.name)

    async def fault_swap_disk(self) -> None:
        node = self._unlucky_node()
        if node is not None and not node.disk.gone and node.starts and self._world.dice.random() < 0.6:
            node.swap_disk()
            self._restart_later(node)

    async def fault_dark_after_fence(self) -> None:
        """A fence is answered, and the power goes: was it durable?"""
        self._world.cluster.dark_after_fence = self._any_node().name
        await self._world.recover_one()

    async def fault_recover(self) -> None:
        await self._world.recover_one()

    def _any_node(self) -> BookieNode:
        return self._world.dice.choice(list(self._world.cluster.nodes.values()))

    def _unlucky_node(self) -> BookieNode | None:
        """None where a single loss is more than the quorums promise to bear."""
        if self._world.shape[2] < 2:
            return None
        if self._unlucky is None:
            self._unlucky = self._any_node().name
        return self._world.cluster.nodes[self._unlucky]

    def _stop(self, process: Process, for_s: float) -> None:
        if process.alive and not process.stopped:
            self._world.told(f"{process.name} is stopped for {for_s} s")
            process.stop()
            self._world.cluster.loop.call_later(for_s, process.resume, context=self._world.cluster.outside)

    def _restart_later(self, node: BookieNode) -> None:
        self._world.cluster.loop.call_later(
            self._world.dice.choice((0.1, 0.5, 3.0)), node.start, context=self._world.cluster.outside
        )

    def _restart_when_dead(self, node: BookieNode) -> None:
        self._world.cluster.loop.call_later(2.0, node.start, context=self._world.cluster.outside)

    def _mend(self, cut: set[tuple[str, str]]) -> None:
        if self._world.cluster.cut is cut:
            self._world.cluster.cut = set()

    def _store_back(self) -> None:
        self._world.cluster.store_down = False

    def _enlarge(self, node: BookieNode) -> None:
        node.disk.capacity = 1 << 40

    def passed(self, name: str) -> None:
        """A crash point. Whoever is to die at it dies here."""
        process = inside()
        if process is None:
            return
        plan = self._planned_crash.get(process.name)
        if plan is None or plan[0] != name or self.over:
            return
        if plan[1] > 1:
            self._planned_crash[process.name] = (name, plan[1] - 1)
            return
        del self._planned_crash[process.name]
        self._world.crashes[name] += 1
        self._world.told(f"{process.name} dies at {name}")
        node = self._world.cluster.nodes.get(process.name)
        if node is not None:
            node.crash(power=self._world.dice.random() < 0.6, worst=self._world.dice.random() < 0.5)
            self._restart_later(node)
        else:
            for client in list(self._world.clients):
                if client.process is process:
                    client.kill()
                    if client.name.startswith("autorecovery"):
                        self._world.cluster.loop.call_later(
                            self._world.dice.choice((0.2, 2.0)),
                            self._world.repairer_again,
                            client,
                            context=self._world.cluster.outside,
                        )
        raise ProcessDied(name)


_FAULTS = (
    Troubles.fault_crash_bookie,
    Troubles.fault_crash_bookie,
    Troubles.fault_crash_point,
    Troubles.fault_crash_point,
    Troubles.fault_owner_crash_point,
    Troubles.fault_repairer_crash_point,
    Troubles.fault_restart_bookie,
    Troubles.fault_restart_repairer,
    Troubles.fault_site_loses_power,
    Troubles.fault_stop_bookie,
    Troubles.fault_stop_owner,
    Troubles.fault_kill_owner,
    Troubles.fault_cut,
    Troubles.fault_cut,
    Troubles.fault_store_down,
    Troubles.fault_expire,
    Troubles.fault_slow_disk,
    Troubles.fault_full_disk,
    Troubles.fault_sync_fails,
    Troubles.fault_index_lost,
    Troubles.fault_rot,
    Troubles.fault_lose_bookie,
    Troubles.fault_swap_disk,
    Troubles.fault_recover,
    Troubles.fault_recover,
    Troubles.fault_dark_after_fence,
)
