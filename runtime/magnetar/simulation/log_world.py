"""A topic's log that goes from owner to owner while bookies and metadata fail; and what must hold.

Each owner appends, reads and acknowledges until it closes, is killed, or is deposed by the next one, who may
come while it is still at work. At the end everything heals, a last owner opens the log, and the history is
judged by the invariants I22-I26 and I29 of the storage fact sheet.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.managed_ledger.config import UNLIMITED, ManagedLedgerConfig
from magnetar.managed_ledger.cursor import Cursor
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.entry_cache import EntryCache
from magnetar.managed_ledger.errors import ManagedLedgerError
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.position import EARLIEST, Position
from magnetar.metadata.memory import MemoryEnsemble
from magnetar.simulation.bookies import BookieFaults, MemoryBookie, MemoryBookies
from magnetar.simulation.ledger_world import InvariantBroken
from magnetar.simulation.loop import VirtualClock, VirtualLoop
from magnetar.simulation.metadata import FaultyStore, MetadataFaults

NAME = "tenant/namespace/persistent/topic"
CURSOR = "subscription"
MB = 1 << 20


@dataclass(frozen=True, slots=True)
class LogOutcome:
    """What a story came to, for those who want to know that stories are worth telling."""

    appended: int
    stored: int
    failed: int
    owners: int
    deposed: int
    acknowledged: int
    ledgers: int
    trimmed: bool


class _Owner:
    """One owner's factory, and the ways it has to the outside."""

    def __init__(self, world: LogWorld, faults: BookieFaults, metadata_faults: MetadataFaults) -> None:
        dice = random.Random(world.dice.getrandbits(64))
        self.bookies = MemoryBookies(world.bookies, dice, faults)
        self.store = FaultyStore(world.metadata.connect(world.clock), dice, metadata_faults)
        self.client = LedgerClient(
            self.store,
            self.bookies,
            clock=world.clock,
            random=dice,
            settings=LedgerClientSettings(ensemble_retry_s=0.3, quarantine_s=0.5, metadata_retry_s=3.0),
        )
        self.factory = ManagedLedgerFactory(
            self.store, self.client, clock=world.clock, cache=EntryCache(2000), random=dice
        )
        self.alive = True

    def kill(self, world: LogWorld) -> None:
        """From now on nobody hears of it."""
        self.alive = False
        self.store.cut = True
        for bookie in world.bookies:
            self.bookies.connection(bookie).cut = True


class LogWorld:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.dice = random.Random(seed)
        self.loop = VirtualLoop()
        self.clock = VirtualClock(self.loop)
        self.metadata = MemoryEnsemble()
        self.bookies = {
            f"bookie-{number}": MemoryBookie(f"bookie-{number}") for number in range(self.dice.randint(3, 5))
        }
        self.trimmed = self.dice.random() < 0.5
        kept = 0 if self.trimmed else UNLIMITED
        self.config = ManagedLedgerConfig(
            3,
            3,
            2,
            max_entries_per_ledger=self.dice.choice((3, 8, 1000)),
            min_rollover_s=0,
            retention_time_s=kept,
            retention_size_bytes=kept,
            storage_retry_s=self.dice.choice((0.5, 3.0)),
            mark_delete_rate_per_s=self.dice.choice((1.0, 20.0)),
            max_entries_per_cursor_ledger=self.dice.choice((3, 1000)),
        )
        self._stored: dict[bytes, Position] = {}
        self._sent: list[bytes] = []
        self._failed = 0
        self._touched: set[bytes] = set()
        """Acknowledged at some time by some owner."""
        self._cumulative = EARLIEST
        """Everything up to here was, too."""
        self._durable: set[bytes] = set()
        """Acknowledged before a flush that succeeded."""
        self._deposed = 0
        self._taken_over: list[float] = []
        """When each owner had the log."""
        self._broken: str | None = None

    def run(self) -> LogOutcome:
        """Tell the story.

        Raises:
            InvariantBroken
        """
        outcome = self.loop.run(self._story())
        if self._broken is not None:
            raise InvariantBroken(self._broken)
        return outcome

    # The story.

    async def _story(self) -> LogOutcome:
        chaos = self.dice.random()
        self._faults = BookieFaults(
            drop=self.dice.choice((0.0, 0.02)) * chaos,
            linger=self.dice.choice((0.0, 0.1)) * chaos,
            fail=self.dice.choice((0.0, 0.05)) * chaos,
            delay_s=0.02,
        )
        self._metadata_faults = MetadataFaults(
            lost_request=0.1 * chaos, lost_answer=0.1 * chaos, late=0.05 * chaos, delay_s=0.02
        )
        crashes = [
            asyncio.ensure_future(self._crash_one(self.dice.random() * 5))
            for _ in range(self.dice.choice((0, 1, 3)))
        ]
        lives: list[asyncio.Future[None]] = []
        for life in range(self.dice.randint(1, 4)):
            owner = _Owner(self, self._faults, self._metadata_faults)
            log = await self._open(owner)
            lives.append(asyncio.ensure_future(self._live(owner, log, life)))
            # The next one may come early, and depose this one in the middle of its work.
            if self.dice.random() < 0.4:
                await asyncio.wait([lives[-1]])
            else:
                await asyncio.sleep(self.dice.random() * 0.8)
        await asyncio.gather(*lives, *crashes)
        return await self._heal_and_judge()

    async def _open(self, owner: _Owner) -> ManagedLedger:
        while True:
            try:
                log = await owner.factory.open(NAME, self.config)
            except ManagedLedgerError:
                await asyncio.sleep(self.dice.random())
                continue
            self._taken_over.append(self.loop.time())
            return log

    async def _live(self, owner: _Owner, log: ManagedLedger, life: int) -> None:
        if self.trimmed and not life:
            await self._subscribe(log)  # Before there is anything that could be trimmed.
        appending = asyncio.ensure_future(self._append(log, life))
        consuming = asyncio.ensure_future(self._consume(owner, log))
        await asyncio.gather(appending, consuming)
        self._deposed += log.fenced
        match self.dice.randint(0, 2):
            case 0:
                owner.kill(self)
            case 1:
                await owner.factory.close()

    async def _subscribe(self, log: ManagedLedger) -> None:
        while not log.fenced:
            try:
                await log.open_cursor(CURSOR, initial="earliest")
                return
            except ManagedLedgerError:
                await asyncio.sleep(0.1)

    async def _append(self, log: ManagedLedger, life: int) -> None:
        for number in range(self.dice.randint(0, 40)):
            if log.fenced:
                return
            self._append_one(log, life, number)
            if self.dice.random() < 0.4:
                await asyncio.sleep(self.dice.random() * 0.1)
        await asyncio.sleep(self.dice.random())

    def _append_one(self, log: ManagedLedger, life: int, number: int) -> None:
        payload = b"%d:%d" % (life, number)
        sent_at = self.loop.time()

        def done(position: Position | None, index: int, error: Exception | None) -> None:
            if position is None:
                self._failed += 1
                return
            self._check(
                life + 1 >= len(self._taken_over) or sent_at <= self._taken_over[life + 1],
                f"{payload!r} was appended after another owner had the log, and acknowledged (I23)",
            )
            earlier = max(self._stored.values(), default=EARLIEST)
            self._check(position > earlier, f"position {position} after {earlier} (I22)")
            self._stored[payload] = position

        self._sent.append(payload)
        log.append((b"\x0e\x01", payload), self.dice.randint(1, 3), done)

    async def _consume(self, owner: _Owner, log: ManagedLedger) -> None:
        cursor: Cursor | None = None
        for _ in range(self.dice.randint(0, 25)):
            await asyncio.sleep(self.dice.random() * 0.1)
            try:
                if cursor is None:
                    cursor = await log.open_cursor(CURSOR, initial="earliest")
                await self._consume_once(cursor)
            except ManagedLedgerError:
                if log.fenced:
                    return
                if cursor is not None:
                    cursor.rewind()

    async def _consume_once(self, cursor: Cursor) -> None:
        entries = await cursor.read(self.dice.randint(1, 8), MB)
        draw = self.dice.random()
        if draw < 0.15:
            cursor.rewind()
        if entries and draw < 0.4:
            # All up to one of them: also what other reads brought and nobody acknowledged.
            upto = self.dice.choice(entries)
            cursor.acknowledge_cumulative(upto.position)
            self._touched |= {
                payload for payload, position in self._stored.items() if position <= upto.position
            }
            self._touched |= {_payload(each) for each in entries if each.position <= upto.position}
            self._cumulative = max(self._cumulative, upto.position)
        elif entries:
            some = [each for each in entries if self.dice.random() < 0.7]
            cursor.acknowledge([(each.position, None) for each in some])
            self._touched |= {_payload(each) for each in some}
        if self.dice.random() < 0.3:
            acknowledged = {payload for payload in self._touched if self._is_acknowledged(cursor, payload)}
            await cursor.flush()
            self._durable |= acknowledged

    def _is_acknowledged(self, cursor: Cursor, payload: bytes) -> bool:
        position = self._stored.get(payload)
        return position is not None and cursor.is_acknowledged(position)

    async def _crash_one(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        bookie = self.dice.choice(list(self.bookies.values()))
        if bookie.up:
            bookie.crash()
            await asyncio.sleep(self.dice.choice((0.2, 1.0, 3.0)))
            bookie.restart()

    # The judgement.

    async def _heal_and_judge(self) -> LogOutcome:
        for bookie in self.bookies.values():
            bookie.restart()
        owner = _Owner(self, BookieFaults(delay_s=0.001), MetadataFaults())
        log = await self._open(owner)
        reader = await log.open_cursor("judge", durable=False, start=EARLIEST)
        entries: list[Entry] = []
        while reader.has_more():
            entries += await reader.read(100, MB)
        found = [_payload(each) for each in entries]
        self._check(len(set(found)) == len(found), "an entry was stored twice (I22)")
        self._check(set(found) <= set(self._sent), "an entry was found that nobody appended")
        for life in range(len(self._taken_over) - 1):
            numbers = [int(each.split(b":")[1]) for each in found if each.startswith(b"%d:" % life)]
            self._check(numbers == sorted(numbers), f"the entries of owner {life} are out of order (I22)")
        last_index = -1
        for each in entries:
            grown = each.index - last_index
            self._check(
                1 <= grown <= 3 or (last_index == -1 and self.trimmed),
                f"index {each.index} after {last_index}",
            )
            last_index = each.index
        self._check(log.next_index == last_index + 1 or not entries, "the next index leaves a gap")
        kept = {_payload(each): each.position for each in entries}
        for payload, position in self._stored.items():
            if payload in kept:
                self._check(
                    kept[payload] == position,
                    f"{payload!r} was stored at {position} and is at {kept[payload]}",
                )
            else:
                self._check(self.trimmed, f"{payload!r} was acknowledged and is lost (I1)")
                self._check(
                    payload in self._touched, f"{payload!r} was trimmed before anyone acknowledged it (I26)"
                )
        cursor = log.cursors.get(CURSOR)
        if cursor is not None:
            self._judge_cursor(cursor, kept)
        outcome = LogOutcome(
            len(self._sent),
            len(self._stored),
            self._failed,
            len(self._taken_over) - 1,
            self._deposed,
            len(self._touched),
            len(log.ledgers),
            len(kept) < len(self._stored),
        )
        await owner.factory.close()
        return outcome

    def _judge_cursor(self, cursor: Cursor, kept: dict[bytes, Position]) -> None:
        unacknowledged = 0
        upto = self._cumulative
        for payload, position in kept.items():
            acknowledged = cursor.is_acknowledged(position)
            unacknowledged += not acknowledged
            if payload in self._durable:
                self._check(acknowledged, f"the acknowledgement of {payload!r} was durable and is lost (I25)")
            if acknowledged:
                self._check(
                    payload in self._touched or position <= upto,
                    f"{payload!r} is skipped, and nobody has acknowledged it (I25)",
                )
        self._check(
            cursor.backlog == unacknowledged, f"backlog {cursor.backlog}, counted {unacknowledged} (I29)"
        )

    def _check(self, holds: bool, otherwise: str) -> None:
        """Remembered, because who calls back must not be able to swallow it."""
        if not holds and self._broken is None:
            self._broken = f"seed {self.seed}: {otherwise}"


def _payload(entry: Entry) -> bytes:
    return entry.data[2:]
