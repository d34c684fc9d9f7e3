"""Deliberate mistakes in the protocol, each a patch of a production module: a simulator that does not notice them proves
nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

Patch = tuple[Any, str, Any]


@dataclass(frozen=True, slots=True)
class Mutation:
    what: str
    world: str
    """The world in whose stories it shows soonest."""
    caught_by: tuple[str, ...]
    """Any of these invariants may notice it first."""
    patches: Callable[[], list[Patch]]


MUTATIONS: dict[str, Mutation] = {}


def _mutation(
    world: str, *caught_by: str
) -> Callable[[Callable[[], list[Patch]]], Callable[[], list[Patch]]]:
    def register(patches: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
        what = (patches.__doc__ or "").strip()
        MUTATIONS[patches.__name__] = Mutation(what, world, caught_by, patches)
        return patches

    return register


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """Have one mutation in force for a while; none if `name` is empty."""
    if not name:
        yield
        return
    before: list[Patch] = []
    try:
        for owner, attribute, replacement in MUTATIONS[name].patches():
            before.append((owner, attribute, owner.__dict__[attribute]))
            setattr(owner, attribute, replacement)
        yield
    finally:
        for owner, attribute, original in reversed(before):
            setattr(owner, attribute, original)


# The ledger's writer.


@_mutation("ledger", "I1", "I4", "I8")
def confirmed_past_a_hole() -> list[Patch]:
    """An entry is confirmed because a later one is complete: the LAC goes past a hole."""
    from magnetar.ledger.write_pipeline import PendingAdd, WritePipeline

    def take_confirmed(self: WritePipeline[Any]) -> list[PendingAdd[Any]]:
        confirmed: list[PendingAdd[Any]] = []
        if self.changing or self.stopped:
            return confirmed
        complete = [add.entry_id for add in self._pending if add.acks >= self._ack_quorum]
        while self._pending and complete and self._pending[0].entry_id <= complete[-1]:
            add = self._pending.popleft()
            self.last_confirmed = add.entry_id
            self.confirmed_length = add.length
            confirmed.append(add)
        return confirmed

    return [(WritePipeline, "take_confirmed", take_confirmed)]


@_mutation("ledger", "I1", "I4", "I8")
def confirmed_one_short() -> list[Patch]:
    """An entry is confirmed with one acknowledgement fewer than the ack quorum."""
    from magnetar.ledger.write_pipeline import WritePipeline

    begin = WritePipeline.__init__

    def one_short(self: WritePipeline[Any], fragment: Any, **more: Any) -> None:
        begin(self, fragment, **more)
        self._ack_quorum = max(1, self._ack_quorum - 1)

    return [(WritePipeline, "__init__", one_short)]


@_mutation("ledger", "I1", "I8")
def replaced_acknowledgements_count() -> list[Patch]:
    """What a replaced bookie had acknowledged still counts."""
    from magnetar.ledger.fragment import replace_slots
    from magnetar.ledger.write_pipeline import PendingAdd, WritePipeline

    def end_change(self: WritePipeline[Any], replacements: Any) -> list[tuple[PendingAdd[Any], int]]:
        self.changing = False
        self.ensemble = replace_slots(self.ensemble, replacements)
        for slot in replacements:
            self.failed.pop(slot, None)
        resent = []
        for add in self._pending:
            for slot in replacements:
                if slot in self.write_slots(add.entry_id):
                    add.failed &= ~(1 << slot)
                    resent.append((add, slot))
        return resent

    return [(WritePipeline, "end_change", end_change)]


@_mutation("ledger", "I1", "I4", "I8")
def late_acknowledgements_count() -> list[Patch]:
    """The late answer of a bookie that was replaced counts for its successor."""
    from magnetar.ledger.write_pipeline import PendingAdd, WritePipeline

    succeeded = WritePipeline.add_succeeded

    def add_succeeded(self: WritePipeline[Any], add: PendingAdd[Any], slot: int, bookie: str) -> bool:
        return succeeded(self, add, slot, self.ensemble[slot])

    return [(WritePipeline, "add_succeeded", add_succeeded)]


@_mutation("ledger", "I1", "I4", "I8")
def confirmed_while_the_ensemble_changes() -> list[Patch]:
    """The LAC goes on while the new segment is being stored that begins right after it."""
    from magnetar.ledger.write_pipeline import PendingAdd, WritePipeline

    succeeded, take = WritePipeline.add_succeeded, WritePipeline.take_confirmed

    def unheld(self: WritePipeline[Any], work: Callable[[], Any]) -> Any:
        changing, self.changing = self.changing, False
        try:
            return work()
        finally:
            self.changing = changing

    def add_succeeded(self: WritePipeline[Any], add: PendingAdd[Any], slot: int, bookie: str) -> bool:
        return bool(unheld(self, partial(succeeded, self, add, slot, bookie)))

    def take_confirmed(self: WritePipeline[Any]) -> list[PendingAdd[Any]]:
        confirmed: list[PendingAdd[Any]] = unheld(self, partial(take, self))
        return confirmed

    return [
        (WritePipeline, "add_succeeded", add_succeeded),
        (WritePipeline, "take_confirmed", take_confirmed),
    ]


# Metadata of ledgers.


@_mutation("ledger", "I1", "I4", "I8")
def ensemble_change_not_stored() -> list[Patch]:
    """A writer uses a new ensemble that the metadata do not name."""
    from magnetar.ledger import writer
    from magnetar.ledger.registry import LedgerRegistry

    update = LedgerRegistry.update

    async def unstored(self: LedgerRegistry, ledger_id: int, change: Any) -> Any:
        if getattr(change, "func", None) is writer._use_ensemble:
            current = await self.read(ledger_id)
            return change(current) or current
        return await update(self, ledger_id, change)

    return [(LedgerRegistry, "update", unstored)]


@_mutation("ledger", "I1", "I3", "I4", "I9")
def changes_without_compare_and_set() -> list[Patch]:
    """Ensemble changes and closes are stored over whatever is there by then."""
    from magnetar.ledger.metadata import encode_metadata, ledger_path
    from magnetar.ledger.registry import LedgerRegistry
    from magnetar.metadata.errors import StoreUnavailable

    async def blind(self: LedgerRegistry, ledger_id: int, change: Any) -> Any:
        patience = self._patience("changing a ledger")
        while True:
            current = await self.read(ledger_id)
            wanted = change(current)
            if wanted is None:
                return current
            try:
                await self._store.put(ledger_path(ledger_id), encode_metadata(wanted))
            except StoreUnavailable as error:
                await patience.wait(error)
            else:
                return wanted

    return [(LedgerRegistry, "update", blind)]


# Recovery.


@_mutation("ledger", "I1", "I4", "I5")
def covered_one_too_few() -> list[Patch]:
    """A recovery begins to read with one bookie fewer fenced than the old writer needs left out."""
    from magnetar.ledger import recovery
    from magnetar.ledger.coverage import covers

    def covers_too_soon(ensemble_size: int, write_quorum: int, ack_quorum: int, known: Any) -> bool:
        return covers(ensemble_size, write_quorum, ack_quorum + 1, known)

    return [(recovery, "covers", covers_too_soon)]


@_mutation("ledger", "I1", "I4")
def truncated_on_an_unknown_answer() -> list[Patch]:
    """A bookie that cannot tell counts as one that never had the entry."""
    from magnetar.ledger.quorum_read import QuorumRead, Verdict
    from magnetar.protocol.bookie import BookieStatus

    answered = QuorumRead.answered

    def believed(self: QuorumRead, slot: int, status: BookieStatus) -> Verdict | None:
        return answered(self, slot, BookieStatus.NO_SUCH_ENTRY if status.is_unknown else status)

    return [(QuorumRead, "answered", believed)]


@_mutation("thin", "I1", "I4")
def absent_by_plain_majority() -> list[Patch]:
    """A recovery ends a ledger where a majority of the write set has nothing, whatever the ack quorum."""
    from magnetar.ledger import quorum_read

    def majority(write_quorum: int, ack_quorum: int) -> int:
        return write_quorum // 2 + 1

    return [(quorum_read, "negatives_needed", majority)]


@_mutation("race", "I1", "I4", "I8")
def recovery_reads_without_the_fence() -> list[Patch]:
    """A recovery fences when it begins, and does not with each read: the fence that was lost leaves a bookie to the writer."""
    from magnetar.ledger import recover

    class Unfenced:
        def __init__(self, connection: Any) -> None:
            self._connection = connection

        def __getattr__(self, name: str) -> Any:
            return getattr(self._connection, name)

        async def read_entry(self, ledger_id: int, entry_id: int, **more: Any) -> Any:
            return await self._connection.read_entry(ledger_id, entry_id)

    class Bookies:
        def __init__(self, bookies: Any) -> None:
            self._bookies = bookies

        def __getattr__(self, name: str) -> Any:
            return getattr(self._bookies, name)

        def connection(self, bookie: str) -> Any:
            return Unfenced(self._bookies.connection(bookie))

    begin = recover._Run.__init__

    def unfenced(self: Any, metadata: Any, surroundings: Any) -> None:
        begin(self, metadata, replace(surroundings, bookies=Bookies(surroundings.bookies)))

    return [(recover._Run, "__init__", unfenced)]


@_mutation("ledger", "I8")
def tail_not_written_back() -> list[Patch]:
    """A recovery closes at the last entry it has found, without waiting until an ack quorum holds it."""
    from magnetar.ledger.recovery import LedgerRecovery, Request, _Phase

    def closed_at_once(self: LedgerRecovery) -> list[Request]:
        if self._phase is not _Phase.WRITING:
            return []
        if self._last_entry < 0:
            return self._close(0)
        if self._length is not None:
            return self._close(self._length)
        self._phase = _Phase.MEASURING
        return self._ask(self._last_entry)

    return [(LedgerRecovery, "_written_all", closed_at_once)]


# The bookie.


@_mutation("storage", "I11")
def fence_not_persisted() -> list[Patch]:
    """A fence is only in memory, until the next checkpoint."""
    from magnetar.bookie.bookie import Bookie

    def fence_state(self: Bookie, state: Any) -> None:
        if not state.fenced:
            state.fenced = True
            self._lac_waits.wake(state.ledger_id)

    return [(Bookie, "_fence_state", fence_state)]


@_mutation("storage", "I11")
def fence_answered_before_it_is_durable() -> list[Patch]:
    """A fence is answered before the journal is synced."""
    from magnetar.bookie.bookie import Bookie
    from magnetar.protocol.bookie import BookieStatus

    async def at_once(self: Bookie, written: Any) -> BookieStatus:
        return BookieStatus.OK

    return [(Bookie, "_durable", at_once)]


@_mutation("storage", "I11")
def fences_not_replayed() -> list[Patch]:
    """A restart passes over the journal's fences."""
    from magnetar.bookie import startup
    from magnetar.bookie.record import Kind

    replay = startup._replay_ledger

    def without_fences(record: Any, table: Any) -> None:
        if record.kind is not Kind.FENCE:
            replay(record, table)

    return [(startup, "_replay_ledger", without_fences)]


@_mutation("storage", "I1", "I4", "I8", "I11", "I12", "I15")
def acknowledged_before_fsync() -> list[Patch]:
    """The journal's groups are acknowledged when written, not when synced."""
    from dataclasses import replace

    from magnetar.bookie.journal import Journal

    commit = Journal._commit

    class Unsynced:
        def __init__(self, file: Any) -> None:
            self._file = file

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

        def sync(self) -> None:
            """Left to the system."""

    def unsynced(self: Journal, group: Any) -> None:
        if not isinstance(self._open_segment.file, Unsynced):
            self._open_segment = replace(self._open_segment, file=Unsynced(self._open_segment.file))
        commit(self, group)

    return [(Journal, "_commit", unsynced)]


@_mutation("storage", "I1", "I4", "I8", "I11", "I12", "I15")
def mark_ahead_of_data() -> list[Patch]:
    """The journal's mark moves before what lies before it is flushed."""
    from dataclasses import replace

    from magnetar.bookie.storage import Storage

    checkpoint = Storage.checkpoint

    def too_soon(self: Storage, half: Any, changes: Any, mark: Any, table_snapshot: Any) -> None:
        if mark > self.checkpoint_state.mark:
            self.checkpoint_state = replace(self.checkpoint_state, mark=mark)
            self._marks.write(self.checkpoint_state)
        checkpoint(self, half, changes, mark, table_snapshot)

    return [(Storage, "checkpoint", too_soon)]


@_mutation("storage", "I14")
def journal_removed_too_soon() -> list[Patch]:
    """One journal segment too many goes when the mark moves."""
    from magnetar.bookie.segments import Segments

    release = Segments.release

    def one_more(self: Segments, before: int) -> None:
        release(self, before + 1)

    return [(Segments, "release", one_more)]


@_mutation("storage", "I16")
def collected_on_a_partial_listing() -> list[Patch]:
    """What one listing of the metadata does not name is garbage."""
    from magnetar.bookie.garbage import GarbageCollector

    async def gone_ledgers(self: GarbageCollector) -> list[int]:
        here = self._bookie.ledgers()
        return sorted(here - await self._live_ledgers()) if here else []

    def long_enough(self: GarbageCollector, gone: list[int]) -> list[int]:
        return gone

    return [
        (GarbageCollector, "_gone_ledgers", gone_ledgers),
        (GarbageCollector, "_gone_long_enough", long_enough),
    ]


@_mutation("storage", "I15", "I20")
def empty_disk_believed() -> list[Patch]:
    """A bookie whose disk was emptied serves as if it had never held anything."""
    from magnetar.bookie.registration import BookieRegistration

    async def believed(self: BookieRegistration, reason: str, *, may_go_on: bool) -> None:
        """Nothing was lost."""

    return [(BookieRegistration, "_accept_loss", believed)]


# Autorecovery.


@_mutation("storage", "I18")
def copy_named_before_it_is_durable() -> list[Patch]:
    """Metadata name a new bookie before the copies are made."""
    from magnetar.autorecovery.copier import Copier

    async def later(self: Copier, ledger_id: int, plan: Any) -> None:
        """The copies would follow."""

    return [(Copier, "copy", later)]


# The managed ledger.


@_mutation("log", "I25", "I24", "I29")
def cursor_mark_goes_back() -> list[Patch]:
    """A cursor comes back from its record in metadata, and not from its ledger, which is ahead."""
    from magnetar.managed_ledger.cursor_store import CursorStore

    async def unread(self: CursorStore, ledger_id: int) -> None:
        return None

    return [(CursorStore, "_read_ledger", unread)]


@_mutation("log", "I26")
def trimmed_past_the_slowest_cursor() -> list[Patch]:
    """Trimming does not ask how far the cursors are."""
    from magnetar.managed_ledger import managed_ledger
    from magnetar.managed_ledger.retention import droppable

    def careless(ledgers: Any, slowest: Any, config: Any, now_ms: int) -> int:
        return droppable(ledgers, None, config, now_ms)

    return [(managed_ledger, "droppable", careless)]


@_mutation("log", "I1", "I22", "I23", "I25", "I29")
def deposed_owner_writes_its_record() -> list[Patch]:
    """An owner's record is stored over whatever is there by then."""
    from magnetar.managed_ledger.owned_record import OwnedRecord

    async def blind(self: OwnedRecord, value: bytes) -> bool:
        self._version = await self._store.put(self._path, value)
        return True

    return [(OwnedRecord, "_try", blind)]


@_mutation("storage", "I1")
def ledgers_deleted_before_the_list() -> list[Patch]:
    """Trimming deletes ledgers, and then takes them off the list."""
    from magnetar.managed_ledger.managed_ledger import ManagedLedger

    drop = ManagedLedger._drop_first

    async def deleted_first(self: ManagedLedger, number: int) -> None:
        for span in list(self.ledgers)[:number]:
            await self.client.delete(span.ledger_id)
        await drop(self, number)

    return [(ManagedLedger, "_drop_first", deleted_first)]


@_mutation("storage", "I27")
def orphans_not_looked_for() -> list[Patch]:
    """A sweep finishes deletions, and does not look for ledgers that nobody names."""
    from magnetar.managed_ledger.sweeper import Sweeper

    async def none(self: Sweeper, *rest: Any, **more: Any) -> set[int]:
        return set()

    return [(Sweeper, "_walk_ledgers", none)]
