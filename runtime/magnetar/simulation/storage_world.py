"""All of storage in one world drawn from one seed: bookies, owners of a log, recoverers, autorecovery, and what befalls them.

Everything that decides is the production code. A run is at least 500 appends, 8 faults and one recovery; at the end the
weather clears up, a last owner opens the log, and what is found is held against what was promised.
"""

from __future__ import annotations

import asyncio
import gc
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from magnetar.autorecovery.autorecovery import Autorecovery
from magnetar.autorecovery.settings import AutorecoverySettings
from magnetar.environment import crash
from magnetar.ledger.errors import LedgerError
from magnetar.managed_ledger.config import UNLIMITED, ManagedLedgerConfig
from magnetar.managed_ledger.cursor import Cursor
from magnetar.managed_ledger.entry_cache import EntryCache
from magnetar.managed_ledger.errors import ManagedLedgerError
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.position import EARLIEST, Position
from magnetar.simulation.bookie_node import BookieNode
from magnetar.simulation.client_process import SimulatedClient
from magnetar.simulation.cluster import Cluster, Weather
from magnetar.simulation.examination import CURSOR, MB, NAME, Examination, payload_of
from magnetar.simulation.judge import InvariantBroken
from magnetar.simulation.process_loop import ProcessLoop
from magnetar.simulation.troubles import Troubles

APPENDS = 500
FAULTS = 8
PATIENCE = 12
"""After so many owners the weather clears up, so that a story ends; after half as many the ways are no longer that bad."""
SHAPES = (
    (3, 3, 2),
    (3, 3, 2),
    (3, 2, 2),
    (3, 2, 1),
    (4, 3, 2),
    (5, 3, 2),
    (4, 4, 3),
    (4, 4, 2),
    (3, 3, 1),
    (3, 3, 3),
    (5, 4, 2),
)
"""Ensembles, write quorums and ack quorums that stories are about."""

_TICK_S = 0.05


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a story came to."""

    seed: int
    digest: str
    appended: int
    acknowledged: int
    faults: int
    recoveries: int
    met: Counter[str]
    crashes: Counter[str]
    """At which crash points processes died."""
    seconds: float
    """Of virtual time."""
    steps: int


class StorageWorld:
    def __init__(self, seed: int, *, kept: bool = False, appends: int = APPENDS) -> None:
        self.seed = seed
        self.dice = random.Random(seed)
        self.appends = appends
        self.loop = ProcessLoop()
        self.cluster = Cluster(seed, self.loop, random.Random(self.dice.getrandbits(64)), kept=kept)
        self.judge = self.cluster.judge
        self.told = self.cluster.history.told
        self.loop.died = self._unexpected
        self.shape = self.dice.choice(SHAPES)
        self.crashes: Counter[str] = Counter()
        self.troubles = Troubles(self)
        self.clients: list[SimulatedClient] = []
        self.owners: list[SimulatedClient] = []
        self.trimmed = self.dice.random() < 0.6
        kept_s = 0 if self.trimmed else UNLIMITED
        self.config = ManagedLedgerConfig(
            *self.shape,
            max_entries_per_ledger=self.dice.choice((20, 60, 1000)),
            min_rollover_s=0,
            retention_time_s=kept_s,
            retention_size_bytes=kept_s,
            storage_retry_s=self.dice.choice((0.5, 3.0)),
            mark_delete_rate_per_s=self.dice.choice((2.0, 20.0)),
            max_entries_per_cursor_ledger=self.dice.choice((4, 1000)),
        )
        self.sent: dict[bytes, float] = {}
        self.stored: dict[bytes, Position] = {}
        self._failed = 0
        self.touched: set[bytes] = set()
        self.cumulative = EARLIEST
        self.durable: set[bytes] = set()
        self._seeks = 0
        self._property = 0
        self.kept_property = 0
        """The highest number that a property of the cursor was known to be set to."""
        self._taken_over: list[float] = []
        self._highest: dict[str, Position] = {}

    def run(self) -> Outcome:
        """Tell the story.

        Raises:
            InvariantBroken
        """
        gc_was_on = gc.isenabled()
        gc.disable()  # What it collects would end at moments that no seed knows.
        crash.observe(self.troubles.passed)
        try:
            self.loop.run(self._told_to_the_end())
        except InvariantBroken:
            if self.judge.broken is None:
                raise
        finally:
            crash.observe(None)
            if gc_was_on:
                gc.enable()
        if self.judge.broken is not None:
            raise self.judge.broken
        return Outcome(
            self.seed,
            self.cluster.history.digest,
            len(self.sent),
            len(self.stored),
            self.troubles.count,
            self.judge.met["recoveries"],
            self.judge.met,
            self.crashes,
            self.loop.now,
            self.loop.steps,
        )

    def new_client(self, name: str) -> SimulatedClient:
        return SimulatedClient(self.cluster, self.dice.getrandbits(64), name)

    # The story.

    async def _told_to_the_end(self) -> None:
        try:
            await self._story()
        finally:
            self.judge.over = True

    async def _story(self) -> None:
        dice, cluster = self.dice, self.cluster
        count = self.shape[0] + dice.randint(1, 2)
        self.told(
            f"a world with {count} bookies, ensembles of {self.shape[0]}, write quorum {self.shape[1]}, ack quorum"
            f" {self.shape[2]}"
        )
        for number in range(count):
            node = BookieNode(cluster, f"bookie-{number}")
            cluster.nodes[node.name] = node
            node.start()
        await self._until(lambda: all(node.up for node in cluster.nodes.values()), 20)
        chaos = dice.random()
        cluster.weather = Weather(
            drop=dice.choice((0.0, 0.01, 0.04)) * chaos,
            linger=dice.choice((0.0, 0.01, 0.05)) * chaos,
            duplicate=dice.choice((0.0, 0.02)),
            corrupt=dice.choice((0.0, 0.05)),
            delay_s=dice.choice((0.002, 0.01)),
            lost_request=0.05 * chaos,
            lost_answer=0.08 * chaos,
            late=0.05 * chaos,
            partial_listing=dice.choice((0.0, 0.3)),
        )
        for number in range(dice.choice((1, 2, 2))):
            self._repairer(f"autorecovery-{number}")
        troubles = asyncio.ensure_future(self.troubles.go_on())
        await self._owners_in_turn()
        while self.troubles.count < FAULTS:
            await self.troubles.one()
        troubles.cancel()
        if self.judge.broken is None:
            await self._heal_and_judge()

    async def _owners_in_turn(self) -> None:
        """Owners come, append and go; the next one often comes while the last is still at work."""
        dice = self.dice
        lives: list[asyncio.Future[None]] = []
        life = 0
        while len(self.sent) < self.appends and self.judge.broken is None:
            share = dice.choice((40, 120, 250))
            owner = self.new_client(f"owner-{life}")
            self.clients.append(owner)
            self.owners.append(owner)
            living = asyncio.ensure_future(self._life(owner, life, share))
            lives.append(living)
            life += 1
            await asyncio.wait([living], timeout=dice.choice((0.5, 3.0, 30.0, 30.0)))
            for old in self.owners[:-3]:
                old.kill()
            if life == PATIENCE // 2:  # Each loss of one of hundreds of messages begins a recovery anew.
                weather = self.cluster.weather
                weather.drop, weather.linger = min(weather.drop, 0.002), min(weather.linger, 0.002)
            if life == PATIENCE:
                self.troubles.end()
            if life > 3 * PATIENCE:
                raise InvariantBroken("I31", f"{life} owners have not stored what one should have", self.seed)
        await asyncio.wait(lives, timeout=dice.random() * 3)

    async def _life(self, owner: SimulatedClient, life: int, share: int) -> None:
        """One owner's time, as long as its process lives."""
        task = owner.process.run(self._own(owner, life, share))
        while not task.done() and owner.process.alive and self.judge.broken is None:  # noqa: ASYNC110  # Time is virtual.
            await asyncio.sleep(_TICK_S)

    async def _own(self, owner: SimulatedClient, life: int, share: int) -> None:
        client = owner.begin()
        factory = ManagedLedgerFactory(
            owner.store, client, clock=self.cluster.clock, cache=EntryCache(4000), random=owner.dice
        )
        log = await self.open(owner, factory)
        self.told(f"{owner.name} has the log")
        self._taken_over.append(self.loop.now)
        turn = len(self._taken_over)
        await self._subscribe(log)  # Before there is anything that could be trimmed.
        consuming = asyncio.ensure_future(self._consume(owner, log))
        await self._append(owner, log, life, turn, share)
        await consuming
        draw = owner.dice.random()
        if draw < 0.5:
            await factory.close()
            self.told(f"{owner.name} has closed the log")

    async def open(self, owner: SimulatedClient, factory: ManagedLedgerFactory) -> ManagedLedger:
        pause_s = 0.3
        while True:
            try:
                return await factory.open(NAME, self.config)
            except ManagedLedgerError as error:
                self.told(f"{owner.name} cannot open the log: {error}")
                await asyncio.sleep(pause_s * (0.3 + owner.dice.random() * 1.7))
                pause_s = min(4.0, pause_s * 1.5)  # Each time, the whole tail is recovered anew.

    async def _append(
        self, owner: SimulatedClient, log: ManagedLedger, life: int, turn: int, share: int
    ) -> None:
        dice = owner.dice
        number = 0
        enough = self.appends + 20
        window = dice.choice((15, 60, 200))
        owner.unanswered = 0
        while number < share and len(self.sent) < enough and not log.fenced and log.state != "closed":
            for _ in range(dice.randint(1, 20)):
                self._append_one(owner, log, b"%d:%d:" % (life, number), turn)
                number += 1
            await asyncio.sleep(dice.random() * dice.choice((0.01, 0.1, 0.3)))
            while owner.unanswered >= window and not log.fenced and log.state != "closed":  # noqa: ASYNC110
                await asyncio.sleep(_TICK_S)
        await asyncio.sleep(dice.random())

    def _append_one(self, owner: SimulatedClient, log: ManagedLedger, name: bytes, turn: int) -> None:
        payload = name + b"x" * owner.dice.randint(0, 40)
        sent_at = self.loop.now

        def done(position: Position | None, index: int, error: Exception | None) -> None:
            owner.unanswered -= 1
            if position is None:
                self._failed += 1
                return
            judge = self.judge
            judge.expect(
                "I23",
                turn >= len(self._taken_over) or sent_at <= self._taken_over[turn],
                f"{name!r} was appended by {owner.name} after another owner had the log, and acknowledged",
            )
            # A former owner may be told late of what its successor has found in the log.
            highest = self._highest.get(owner.name, EARLIEST)
            judge.expect("I22", position > highest, f"position {position} acknowledged after {highest}")
            self._highest[owner.name] = position
            judge.acknowledged(position.ledger_id, position.entry_id, payload)
            self.cluster.history.passed(owner.name, "acknowledged", position.ledger_id, position.entry_id)
            self.stored[payload] = position

        self.sent[payload] = sent_at
        owner.unanswered += 1
        log.append((b"\x0e\x01", payload), owner.dice.randint(1, 3), done)

    # Consuming.

    async def _subscribe(self, log: ManagedLedger) -> None:
        while not log.fenced and log.state != "closed":
            try:
                await log.open_cursor(CURSOR, initial="earliest")
                return
            except ManagedLedgerError:
                await asyncio.sleep(0.1)

    async def _consume(self, owner: SimulatedClient, log: ManagedLedger) -> None:
        cursor: Cursor | None = None
        dice = owner.dice
        for _ in range(dice.randint(10, 60)):
            await asyncio.sleep(dice.random() * 0.2)
            try:
                if cursor is None:
                    cursor = await log.open_cursor(CURSOR, initial="earliest")
                draw = dice.random()
                if draw < 0.85:
                    await self._consume_once(owner, cursor)
                elif draw < 0.9:
                    await self._seek(owner, log, cursor)
                elif draw < 0.93:
                    await self._keep_property(cursor)
                elif draw < 0.96:
                    await self._look(owner, cursor)
                else:
                    await self._browse(owner, log)
            except ManagedLedgerError:
                if log.fenced or log.state == "closed":
                    return
                if cursor is not None:
                    cursor.rewind()

    async def _consume_once(self, owner: SimulatedClient, cursor: Cursor) -> None:
        dice = owner.dice
        before = cursor.mark_delete
        entries = await cursor.read(dice.randint(1, 40), MB)
        draw = dice.random()
        if draw < 0.1:
            cursor.rewind()
        if entries and draw < 0.5:
            upto = dice.choice(entries)
            self.touched |= {
                payload for payload, position in self.stored.items() if position <= upto.position
            }
            self.touched |= {payload_of(each) for each in entries if each.position <= upto.position}
            self.cumulative = max(self.cumulative, upto.position)
            if draw < 0.2:  # Of the last one only some messages.
                self._property += 1
                cursor.acknowledge_cumulative(upto.position, [0b110], {"mark": self._property})
            else:
                cursor.acknowledge_cumulative(upto.position)
        elif entries:
            some = [each for each in entries if dice.random() < 0.8]
            self.touched |= {payload_of(each) for each in some}
            # A batch's messages are acknowledged one by one: a bit that is left keeps the entry.
            parts = [dice.choice((None, None, None, [1], [0b1010])) for _ in some]
            cursor.acknowledge([(each.position, part) for each, part in zip(some, parts, strict=True)])
        self.judge.expect(
            "I24", cursor.mark_delete >= before, f"mark-delete went from {before} to {cursor.mark_delete}"
        )
        if dice.random() < 0.3:
            acknowledged = {
                payload
                for payload in self.touched
                if payload in self.stored and cursor.is_acknowledged(self.stored[payload])
            }
            seeks = self._seeks
            await cursor.flush()
            if seeks == self._seeks:
                self.durable |= acknowledged

    async def _seek(self, owner: SimulatedClient, log: ManagedLedger, cursor: Cursor) -> None:
        """Read on from elsewhere: what lies behind is no more acknowledged, what lies before is."""
        known = sorted(self.stored.values())
        if not known or owner is not self.owners[-1]:
            return
        target = owner.dice.choice(known)
        self._seeks += 1
        before = log.position_before(target)
        self.cumulative = max(self.cumulative, before)
        self.touched |= {payload for payload, position in self.stored.items() if position < target}
        self.durable = {payload for payload in self.durable if self.stored[payload] < target}
        await cursor.reset(target)
        self.judge.met["seeks"] += 1

    async def _keep_property(self, cursor: Cursor) -> None:
        self._property += 1
        number = self._property
        if number % 5 == 0:
            await cursor.set_cursor_properties({"number": str(number), "kept": "yes"})
        else:
            await cursor.put_cursor_property("number", str(number))
        self.kept_property = max(self.kept_property, number)

    async def _look(self, owner: SimulatedClient, cursor: Cursor) -> None:
        """Read again what is not acknowledged, and look at the figures."""
        waiting = [each for each in self.stored.values() if not cursor.is_acknowledged(each)]
        if waiting:
            some = owner.dice.sample(waiting, min(5, len(waiting)))
            for entry in await cursor.read_entries_at(sorted(some)):
                self.judge.expect(
                    "I1",
                    self.stored.get(payload_of(entry), entry.position) == entry.position,
                    f"{entry.position} holds {payload_of(entry)[:12]!r}",
                )
        stats = cursor.stats()
        self.judge.expect(
            "I29", cursor.backlog_bytes >= 0, f"the backlog has {cursor.backlog_bytes} bytes: {stats}"
        )
        cursor.deactivate()

    async def _browse(self, owner: SimulatedClient, log: ManagedLedger) -> None:
        """Somebody reads along without being remembered, or with a cursor that does not live for long."""
        dice = owner.dice
        if dice.random() < 0.5:
            reader = await log.open_cursor(f"browser-{owner.name}", durable=False, start=EARLIEST)
            for entry in await reader.read(dice.randint(1, 30), MB):
                self.judge.expect(
                    "I22",
                    payload_of(entry) in self.sent,
                    f"{entry.position} was read, and nobody has appended it",
                )
            await reader.close()
            return
        other = await log.open_cursor("passing", initial=dice.choice(("earliest", "latest")))
        entries = await other.read(10, MB)
        other.acknowledge([(each.position, None) for each in entries])
        if dice.random() < 0.5:
            await other.close()
        if dice.random() < 0.5:
            await log.delete_cursor("passing")

    # Those who repair, and those who only recover.

    def _repairer(self, name: str) -> SimulatedClient:
        client = self.new_client(name)
        self.clients.append(client)

        async def repair() -> None:
            autorecovery = Autorecovery(
                client.store,
                client.begin(),
                client.provider,
                clock=self.cluster.clock,
                dice=client.dice,
                settings=AutorecoverySettings(
                    lost_bookie_recovery_delay_s=client.dice.choice((0.5, 3.0)),
                    open_ledger_grace_s=1.0,
                    copy_bytes_per_s=0,
                    copy_batch_entries=20,
                    workers_idle_s=2.0,
                    retry_s=0.5,
                    retry_max_s=6.0,
                    bookie_check_interval_s=5.0,
                    placement_check_interval_s=client.dice.choice((0.0, 6.0)),
                    ledger_check_interval_s=client.dice.choice((0.0, 0.0, 10.0)),
                ),
                name=name,
            )
            autorecovery.start()
            client.stop = autorecovery.stop

        client.process.run(repair())
        return client

    def repairer_again(self, client: SimulatedClient) -> None:
        """Start autorecovery again where it has died, unless somebody has done so."""
        again = f"{client.name}-again"
        repairs = client.name.startswith("autorecovery") and not client.process.alive
        if repairs and all(each.name != again for each in self.clients):
            self._repairer(again)

    async def recover_one(self) -> None:
        """Somebody else recovers the ledger that is written now: an operator, or autorecovery at a bad moment."""
        open_ledgers = [each for each, metadata in self.judge.metadata.items() if not metadata.closed]
        if not open_ledgers:
            return
        ledger_id = self.dice.choice(open_ledgers)
        for _ in range(self.dice.randint(1, 3)):
            client = self.new_client(f"recoverer-{len(self.clients)}")
            self.clients.append(client)

            async def recover(client: SimulatedClient = client) -> None:
                ledgers = client.begin()
                try:
                    metadata = await ledgers.recover(ledger_id)
                except LedgerError as error:
                    self.told(f"{client.name} cannot recover ledger {ledger_id}: {error}")
                    return
                self.told(f"{client.name} has recovered ledger {ledger_id}, last {metadata.last_entry}")

            client.process.run(recover())
            await asyncio.sleep(self.dice.random() * 0.01)

    # The judgement.

    async def _heal_and_judge(self) -> None:
        cluster = self.cluster
        for client in self.clients:
            if not client.name.startswith("autorecovery"):
                client.kill()
        self.troubles.end()
        for client in list(self.clients):
            self.repairer_again(client)
        here = [node for node in cluster.nodes.values() if not node.disk.gone]
        await self._until(lambda: all(node.up or node.process is None for node in here), 60)
        judge = self.new_client("judge")
        work = judge.process.run(Examination(self).examine(judge))
        await asyncio.wait([work], timeout=120)
        if not work.done():
            self.judge.expect(
                "I31", False, "nothing fails any more, and the log could not be opened in 2 minutes"
            )
        elif work.exception() is not None:
            raise work.exception() or AssertionError

    def _unexpected(self, error: BaseException) -> None:
        self.cluster.history.aside(f"unexpected: {type(error).__name__}: {error}")
        self.judge.met["unexpected errors"] += 1

    async def _until(self, holds: Callable[[], bool], seconds: float) -> None:
        end = self.loop.now + seconds
        while not holds() and self.loop.now < end:  # noqa: ASYNC110  # Time is virtual.
            await asyncio.sleep(_TICK_S)
