"""The end of a `StorageWorld`: nothing fails any more, and all that was promised is looked for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from magnetar.autorecovery import operations
from magnetar.autorecovery.errors import AutorecoveryError
from magnetar.bookie.bookie import Bookie
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.underreplicated import UnderreplicatedLedgers
from magnetar.managed_ledger.config import UNLIMITED
from magnetar.managed_ledger.cursor import Cursor
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.entry_cache import EntryCache
from magnetar.managed_ledger.errors import ManagedLedgerError
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.position import EARLIEST, Position
from magnetar.managed_ledger.records import cursor_path, decode_cursor, decode_log, log_path
from magnetar.managed_ledger.sweeper import SweepSettings
from magnetar.metadata.errors import MetadataError
from magnetar.protocol.bookie import BookieStatus, EntryList
from magnetar.simulation.client_process import SimulatedClient
from magnetar.simulation.last_acts import delete_amid_reads, terminate_amid_appends

if TYPE_CHECKING:
    from magnetar.simulation.storage_world import StorageWorld

NAME = "tenant/namespace/persistent/topic"
CURSOR = "subscription"
MB = 1 << 20


class Examination:
    def __init__(self, world: StorageWorld) -> None:
        self._world = world

    async def examine(self, judge: SimulatedClient) -> None:
        client = judge.begin()
        factory = ManagedLedgerFactory(
            judge.store, client, clock=self._world.cluster.clock, cache=EntryCache(4000), random=judge.dice
        )
        # Nothing is trimmed any more while it is read.
        self._world.config = replace(
            self._world.config, retention_time_s=UNLIMITED, retention_size_bytes=UNLIMITED
        )
        log = await self._world.open(judge, factory)
        entries = await self._read_all(log)
        self._judge_log(log, entries)
        cursor = log.cursors.get(CURSOR)
        if cursor is not None:
            self._judge_cursor(cursor, {payload_of(each): each.position for each in entries})
        await self._judge_replicas(judge, log)
        await factory.close()
        await self._judge_repairs(judge)
        await self._end_of_the_log(judge, client)

    async def _read_all(self, log: ManagedLedger) -> list[Entry]:
        reader = await log.open_cursor("judge", durable=False, start=EARLIEST)
        entries: list[Entry] = []
        failures = 0
        while reader.has_more():
            try:
                entries += await reader.read(100, MB)
            except ManagedLedgerError as error:
                failures += 1
                if failures > 20:
                    self._world.judge.expect("I1", False, f"what was acknowledged cannot be read: {error}")
                    break
                reader.rewind()
                entries = []
                await asyncio.sleep(0.5)
        return entries

    def _judge_log(self, log: ManagedLedger, entries: Sequence[Entry]) -> None:
        expect = self._world.judge.expect
        found = [payload_of(each) for each in entries]
        expect("I22", len(set(found)) == len(found), "an entry is stored twice")
        expect(
            "I22", all(each in self._world.sent for each in found), "an entry was found that nobody appended"
        )
        order: dict[bytes, int] = {}
        for each in found:
            life, number = each.split(b":")[:2]
            expect(
                "I22",
                int(number) > order.get(life, -1),
                f"entry {number!r} of owner {life!r} comes after {order.get(life, -1)}",
            )
            order[life] = int(number)
        kept = {payload_of(each): each.position for each in entries}
        for payload, position in self._world.stored.items():
            if payload in kept:
                expect(
                    "I1",
                    kept[payload] == position,
                    f"{payload[:12]!r} was acknowledged at {position} and is at {kept[payload]}",
                )
            elif not self._world.trimmed:
                expect("I1", False, f"{payload[:12]!r} was acknowledged at {position} and is lost")
            else:
                expect(
                    "I26",
                    payload in self._world.touched or position <= self._world.cumulative,
                    f"{payload[:12]!r} at {position} is gone, and nobody had acknowledged it",
                )
        gone = [position for payload, position in self._world.stored.items() if payload not in kept]
        if gone and entries:
            expect(
                "I26",
                max(gone) < entries[0].position,
                f"{max(gone)} is gone, and {entries[0].position} before it is there",
            )

    def _judge_cursor(self, cursor: Cursor, kept: dict[bytes, Position]) -> None:
        expect = self._world.judge.expect
        unacknowledged = 0
        for payload, position in kept.items():
            acknowledged = cursor.is_acknowledged(position)
            unacknowledged += not acknowledged
            if payload in self._world.durable:
                expect(
                    "I25", acknowledged, f"the acknowledgement of {payload[:12]!r} was durable and is lost"
                )
            if acknowledged:
                expect(
                    "I25",
                    payload in self._world.touched or position <= self._world.cumulative,
                    f"{payload[:12]!r} is skipped, and nobody has acknowledged it",
                )
        number = int(cursor.cursor_properties.get("number", "0"))
        kept_number = self._world.kept_property
        expect("I24", number >= kept_number, f"a property was set to {kept_number}, and is {number}")
        expect("I29", cursor.backlog == unacknowledged, f"backlog {cursor.backlog}, counted {unacknowledged}")

    async def _judge_replicas(self, judge: SimulatedClient, log: ManagedLedger) -> None:
        """I8, I12: what was acknowledged is at the bookies that the metadata name, and they have what they said."""
        held: dict[tuple[str, int], EntryList] = {}
        for span in list(log.ledgers):
            metadata = self._world.judge.metadata.get(span.ledger_id)
            acked = self._world.judge.acked.get(span.ledger_id, {})
            self._world.judge.expect(
                "I1", metadata is not None, f"ledger {span.ledger_id} is in the log, and deleted"
            )
            if metadata is None:
                continue
            for entry_id in acked:
                holders = 0
                blind = 0
                for bookie in metadata.fragment_of(entry_id).write_set(entry_id):
                    node = self._world.cluster.nodes[bookie]
                    if node.bookie is None or bookie in self._world.judge.rotten:
                        blind += 1
                        continue
                    key = (bookie, span.ledger_id)
                    if key not in held:
                        held[key] = await judge.provider.connection(bookie).list_entries(span.ledger_id)
                    listed = held[key]
                    has = entry_id in listed
                    had = self._world.judge.had(bookie, span.ledger_id, entry_id)
                    if had and not has:  # A worker may have brought it since the list was made.
                        listed = held[key] = await judge.provider.connection(bookie).list_entries(
                            span.ledger_id
                        )
                        has = entry_id in listed
                    holders += has
                    if had:
                        self._world.judge.expect(
                            "I12",
                            has or listed.status.is_unknown,
                            f"{bookie} had acknowledged entry {span.ledger_id}:{entry_id}, and has lost it",
                        )
                self._world.judge.expect(
                    "I8",
                    holders + blind >= metadata.ack_quorum,
                    f"entry {span.ledger_id}:{entry_id} was acknowledged, and {holders} of its bookies have it",
                )
        for node in self._world.cluster.nodes.values():
            serving, process = node.bookie, node.process
            if serving is None or process is None or node.name in self._world.judge.rotten:
                continue
            ledger_ids = [each.ledger_id for each in log.ledgers]
            await process.run(self._judge_bytes(serving, node.name, ledger_ids))
            await process.run(node.judge_places(serving, 20))

    async def _judge_bytes(self, bookie: Bookie, name: str, ledger_ids: Sequence[int]) -> None:
        """I17: each replica gives back the same bytes, however often they were moved about."""
        for ledger_id in ledger_ids:
            metadata = self._world.judge.metadata.get(ledger_id)
            if metadata is None:  # Trimmed a moment ago.
                continue
            acked = sorted(self._world.judge.acked.get(ledger_id, {}).items())
            for entry_id, payload in acked[:: max(1, len(acked) // 12)]:
                if name not in metadata.fragment_of(entry_id).write_set(entry_id):
                    continue
                if not self._world.judge.had(name, ledger_id, entry_id):
                    continue
                answer = await bookie.read_entry(ledger_id, entry_id)
                self._world.judge.expect(
                    "I17",
                    answer.status is BookieStatus.OK and answer.entry.endswith(payload),
                    f"{name} answers {answer.status.name} for entry {ledger_id}:{entry_id}, which it holds",
                )

    async def _judge_repairs(self, judge: SimulatedClient) -> None:
        """I19: when no mark is left, no closed ledger names a bookie that is gone for good."""
        gone = {node.name for node in self._world.cluster.nodes.values() if node.disk.gone}
        if not gone:
            return
        try:
            # What was listed while lists were cut short is looked at again a day later; nobody here waits for that.
            await operations.trigger(judge.store, wait_s=60.0)
        except (AutorecoveryError, LedgerError):
            self._world.judge.met["repairs not finished"] += 1
            return
        marks = UnderreplicatedLedgers(judge.store)
        quiet = 0
        for _ in range(120):
            quiet = quiet + 1 if not await marks.list() else 0
            if quiet > 12:
                break
            await asyncio.sleep(0.5)
        else:
            self._world.judge.met["repairs not finished"] += 1
            return
        self._world.judge.met["repairs judged"] += 1
        for ledger_id, metadata in self._world.judge.metadata.items():
            if metadata.closed and metadata.last_entry >= 0:
                named = {bookie for segment in metadata.segments for bookie in segment.ensemble}
                self._world.judge.expect(
                    "I19",
                    not named & gone,
                    f"no ledger is marked, and ledger {ledger_id} names {sorted(named & gone)}",
                )

    async def _end_of_the_log(self, judge: SimulatedClient, client: LedgerClient) -> None:
        """It may be terminated, and deleted; then nothing is left that belongs to nobody."""
        world, dice = self._world, judge.dice
        factory = ManagedLedgerFactory(
            judge.store,
            client,
            clock=world.cluster.clock,
            cache=EntryCache(4000),
            random=dice,
            sweeps=SweepSettings(interval_s=0, orphan_age_s=0, records_per_s=1e6, orphan_share_max=1.0),
        )
        terminates, deletes = dice.random() < 0.3, dice.random() < 0.4
        if terminates or deletes:
            log = await world.open(judge, factory)
            if terminates:
                await terminate_amid_appends(world.judge, log, 40, dice.randrange(40))
            if deletes:
                await delete_amid_reads(world.judge, factory, log, world.sent, dice.random() * 0.02)
        await self._judge_leaks(judge, factory)
        await factory.close()

    async def _judge_leaks(self, judge: SimulatedClient, factory: ManagedLedgerFactory) -> None:
        """I27: every ledger belongs to the log, a cursor, or those that are to be deleted, once it is swept."""
        leaked: set[int] = set()
        swept = 0
        for _ in range(40):
            try:
                if swept:
                    leaked = await self._leaked(judge)
                    if not leaked:
                        return
                await factory.sweep()
                swept += 1
            except (MetadataError, ManagedLedgerError):
                leaked = {-1}
            if swept > 6:
                break
            await asyncio.sleep(0.5)
        # What cannot be recovered cannot be fenced, so that the sweeper leaves it.
        rotten = bool(self._world.judge.rotten)
        self._world.judge.met["orphans left"] += len(leaked)
        self._world.judge.expect(
            "I27",
            rotten or not swept,
            f"ledgers {sorted(leaked)[:5]} are named by nobody, and stay after {swept} sweeps",
        )

    async def _leaked(self, judge: SimulatedClient) -> set[int]:
        found = await judge.store.get(log_path(NAME))
        if found is None:
            return set(self._world.judge.metadata)
        record = decode_log(NAME, found.value)
        known = {each.ledger_id for each in record.ledgers} | set(record.doomed)
        for name in (CURSOR, "passing"):
            cursor = await judge.store.get(cursor_path(NAME, name))
            if cursor is not None and cursor.value:
                cursor_record = decode_cursor(name, cursor.value)
                known |= {cursor_record.ledger_id, *cursor_record.doomed}
        return set(self._world.judge.metadata) - known


def payload_of(entry: Entry) -> bytes:
    return entry.data[2:]
