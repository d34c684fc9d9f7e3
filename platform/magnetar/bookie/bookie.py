"""The bookie: takes entries, makes them durable, gives them back, and fences.

An object with the interface of a `BookieConnection`: a ledger client in the same process calls it directly,
`server.py` calls it for those behind a socket. All its methods belong to the loop it was started on.

An add passes the fence check and enters the write cache in one step of the loop, and so does a fence take effect: what
passed before the fence is seen by the reads that follow it, and nothing passes after.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

from magnetar.bookie.answers import Answers
from magnetar.bookie.checkpoint import Checkpointer
from magnetar.bookie.damage import DamagedEntries
from magnetar.bookie.directory import Cookie, Share
from magnetar.bookie.door import Entrance, WaitingAdd, tell
from magnetar.bookie.errors import BookieNotRunning
from magnetar.bookie.figures import serving_samples
from magnetar.bookie.index_rebuild import IndexRebuild
from magnetar.bookie.lac_waits import LacWaits
from magnetar.bookie.ledger_table import LedgerState
from magnetar.bookie.limbo import Limbo
from magnetar.bookie.machine import THIS_MACHINE, Machine
from magnetar.bookie.mode import Mode
from magnetar.bookie.opening import Running, open_bookie
from magnetar.bookie.read_cache import ReadCache
from magnetar.bookie.reads import Reader
from magnetar.bookie.record import Kind, encode_explicit_lac, encode_registration
from magnetar.bookie.settings import BookieSettings
from magnetar.bookie.space import Fullness
from magnetar.bookie.space_watch import SpaceWatch
from magnetar.bookie.storage import Storage
from magnetar.bookie.write_cache import Parts, stored_form
from magnetar.environment.clock import Clock
from magnetar.environment.crash import crash_point
from magnetar.environment.disk import Disk, fail_stop
from magnetar.environment.errors import DiskFailed
from magnetar.environment.logs import get_logger
from magnetar.metrics.sample import Sample, counter, gauge
from magnetar.protocol.bookie import (
    MAX_ENTRY_BYTES,
    NO_LAC,
    AddDone,
    AddFlags,
    BookieInfo,
    BookieStatus,
    EntryList,
    EntryRead,
    LacRead,
)
from magnetar.protocol.buffers import Buffer
from magnetar.protocol.ledger_entry import ENTRY_HEADER, ENTRY_HEADER_BYTES, entry_digest_matches

_URGENT = AddFlags.RECOVERY | AddFlags.HIGH_PRIORITY
_OK = BookieStatus.OK
_T = TypeVar("_T")

log = get_logger("magnetar.bookie")


class Bookie:
    def __init__(
        self,
        settings: BookieSettings,
        *,
        disk: Disk,
        clock: Clock,
        bookie_id: str,
        on_disk_failure: Callable[[BaseException], object] = fail_stop,
        machine: Machine = THIS_MACHINE,
        share: Share | None = None,
    ) -> None:
        """`on_disk_failure` must not return in production: after a failed sync nothing can be promised.

        `share`: which of a bookie's several directories this is; `several.py` makes one of these for each.
        """
        self.settings = settings
        self.bookie_id = bookie_id
        self.read_only = False
        self.on_mode_change: Callable[[], None] | None = None
        """Called when `read_only` has changed, or free space by much."""
        self._disk = disk
        self._share = share
        self._machine = machine
        self._clock = clock
        self._on_disk_failure = on_disk_failure
        self._serving = False
        self._cookie: Cookie | None = None
        self._mode = Mode(
            settings.watermarks,
            on_read_only=self._on_read_only,
            on_news=self._on_news,
            on_filling=self._on_filling,
        )
        self.companions: list[Callable[[], Iterable[Sample]]] = []
        """Whose metrics are shown with its own: those who look after it."""
        self.on_disk_filling: Callable[[], None] | None = None
        """Called when the disk has become fuller by a watermark: time to collect garbage."""
        self.adds = 0
        self.add_bytes = 0
        self.reads = 0
        self._lac_waits = LacWaits(settings.lac_waits_max)
        self.limbo = Limbo()
        """What may be lost. Replaced as a whole."""
        self._fences_are_back = False
        self._background_reads = asyncio.Semaphore(1)

    # Starting and stopping.

    async def start(self) -> None:
        """Open the data directory, or make one, and bring back what was acknowledged.

        Raises:
            DirectoryInUse: another process runs on it.
            ForeignDirectory, NewerFormat, DirectoryDamaged, JournalCorrupt: see `errors.py`.
        """
        settings = self.settings
        self._loop = asyncio.get_running_loop()
        self._storage_thread = self._machine.pool(1, "bookie-storage")
        self._read_threads = self._machine.pool(settings.read_threads, "bookie-read")
        opening = self._loop.run_in_executor(self._storage_thread, self._open)
        try:
            running = await asyncio.shield(opening)
        except BaseException:
            await self._undo(opening)
            raise
        self._running = running
        self._cookie = running.cookie
        self._table, self._cache, self._journal = running.table, running.cache, running.journal
        self._index_rebuild = IndexRebuild(
            partial(self.in_storage_thread, running.storage.rebuild_index, self._table)
        )
        self._read_cache = ReadCache(settings.read_cache_bytes)
        self.damaged = DamagedEntries()
        caches, rebuild = (self._cache, self._read_cache), self._index_rebuild.request
        self._reader = Reader(*caches, running.storage, self._read_threads, rebuild, self.damaged)
        self._answers = Answers(self._table, self._reader, self._lac_waits, self._doubts)
        self._checkpointer = Checkpointer(
            self._cache,
            self._table,
            self._journal,
            running.segments,
            running.storage,
            self._storage_thread,
            interval_s=settings.flush_interval_s,
            free_bytes=self._free_bytes,
            on_ended=self._on_checkpoint,
            on_index_unusable=self._index_rebuild.request,
            on_failure=self._on_disk_failure,
        )
        self._entrance = Entrance(
            settings, self._cache, self._journal, self._checkpointer.begin, self._admit_waiting
        )
        self._door, self._back_door = self._entrance.front, self._entrance.back
        self._journal.on_acknowledged = self._entrance.let_in
        self.limbo, self._fences_are_back = running.limbo, False
        self._mode.total_bytes = running.total_bytes
        self._mode.set("limbo", running.limbo.reason)
        self._space = SpaceWatch(self._mode, self._checkpointer, self._free_bytes, self._storage_thread)
        self._space.look(running.free_bytes)
        self._serving = True
        if self._checkpointer.is_needed:
            self._checkpointer.schedule()
        log.info(
            "bookie.started",
            bookie=self.bookie_id,
            directory=str(settings.directory),
            ledgers=len(self._table),
            replayed=running.replayed,
        )

    async def _undo(self, opening: asyncio.Future[Running]) -> None:
        """A start that failed, or is not wanted any more, leaves nothing open."""
        await asyncio.wait([opening])
        if opening.exception() is None:
            running = opening.result()
            await running.journal.stop()
            running.storage.close(seal=False)
            running.lock.release()
        self._storage_thread.shutdown(wait=False)
        self._read_threads.shutdown(wait=False)

    def _open(self) -> Running:
        return open_bookie(
            self.settings,
            disk=self._disk,
            machine=self._machine,
            clock=self._clock,
            bookie_id=self.bookie_id,
            share=self._share,
            loop=self._loop,
            on_failure=self._on_disk_failure,
        )

    async def stop(self) -> None:
        """Refuse what comes, finish what was taken, flush, and let go of the directory."""
        if not self._serving:
            return
        self._serving = False
        self._lac_waits.wake_all()
        self._space.stop()
        self._entrance.close()
        await self._journal.stop()
        flushed = await self._last_checkpoint()
        self._checkpointer.stop()
        await self._index_rebuild.wait()
        await asyncio.to_thread(self._read_threads.shutdown)
        await self.in_storage_thread(partial(self._running.storage.close, seal=flushed))
        self._storage_thread.shutdown()
        self._running.lock.release()
        log.info("bookie.stopped", bookie=self.bookie_id, flushed=flushed)

    async def _last_checkpoint(self) -> bool:
        if not self._checkpointer.is_needed:
            return True
        try:
            async with asyncio.timeout(self.settings.stop_wait_s):
                await self._checkpointer.run()
        except TimeoutError:
            log.warning("bookie.stopped_unflushed", reason=self._checkpointer.failing or "too slow")
            return False
        return True

    async def close(self) -> None:
        """A client lets go of its connection. The bookie itself goes on: that is what `stop` is for."""

    @property
    def instance_id(self) -> str:
        """The data directory's identity. Raises BookieNotRunning before the first start."""
        if self._cookie is None:
            raise BookieNotRunning
        return self._cookie.instance_id

    @property
    def directory_is_fresh(self) -> bool:
        """Whether this start made the directory: it has never held an entry."""
        return self._cookie is not None and self._cookie.fresh

    # Adding.

    def add_entry(
        self,
        ledger_id: int,
        entry_id: int,
        parts: Sequence[Buffer],
        flags: AddFlags,
        master_key: bytes,
        done: AddDone,
    ) -> None:
        if not self._serving:
            asyncio.get_running_loop().call_soon(done, BookieStatus.UNREACHABLE)
            return
        entry = stored_form(parts)
        size = sum(map(len, entry))
        if flags and flags & AddFlags.BACKGROUND:
            if not self._back_door and self._entrance.has_spare_room(size):
                self._admit(ledger_id, entry_id, entry, size, flags, master_key, done)
            else:
                self._back_door.wait(WaitingAdd(ledger_id, entry_id, entry, size, flags, master_key, done))
        elif not self._door and self._entrance.has_room(size):
            self._admit(ledger_id, entry_id, entry, size, flags, master_key, done)
        else:
            self._door.wait(WaitingAdd(ledger_id, entry_id, entry, size, flags, master_key, done))

    def _on_checkpoint(self) -> None:
        self._entrance.let_in()
        if self._serving:
            self._space.look(self._checkpointer.free_bytes)

    def _admit_waiting(self, add: WaitingAdd) -> None:
        self._admit(*add)

    def _admit(
        self,
        ledger_id: int,
        entry_id: int,
        entry: Parts,
        size: int,
        flags: AddFlags,
        master_key: bytes,
        done: AddDone,
    ) -> None:
        """Check, put into the cache and queue for the journal: one step, which no fence can come between."""
        head = entry[0]
        if len(head) != ENTRY_HEADER_BYTES or size > MAX_ENTRY_BYTES or ledger_id < 0 or entry_id < 0:
            self._refuse(done, BookieStatus.BAD_REQUEST)
            return
        header_ledger, header_entry, lac, _, _ = ENTRY_HEADER.unpack(head)
        if (
            header_ledger != ledger_id
            or header_entry != entry_id
            or not entry_digest_matches(head, entry[1:])
        ):
            log.warning(
                "add.refused", ledger_id=ledger_id, entry_id=entry_id, reason="header or checksum differ"
            )
            self._refuse(done, BookieStatus.BAD_REQUEST)
            return
        if self.read_only and (not flags & _URGENT or self._mode.fullness is Fullness.RESERVED):
            self._refuse(done, BookieStatus.READ_ONLY)
            return
        state = self._table.get(ledger_id)
        if state is None:
            if not master_key:
                self._refuse(done, BookieStatus.UNAUTHORIZED)
                return
            state = self._register(ledger_id, master_key)
        elif state.master_key != master_key and not self._adopted(state, master_key):
            self._refuse(done, BookieStatus.UNAUTHORIZED)
            return
        if state.fenced and not flags & AddFlags.RECOVERY:
            self._refuse(done, BookieStatus.FENCED)
            return
        self._cache.put(ledger_id, entry_id, entry, size)
        crash_point("bookie.add.cached")
        if entry_id > state.last_entry and state.tail_known:
            state.last_entry = entry_id
        else:
            state.last_entry = max(state.last_entry, entry_id)
            self._read_cache.drop(ledger_id, entry_id)
            self.damaged.mended(ledger_id, entry_id)  # The cache has it whole, and so will the index.
        if lac > state.lac:
            state.lac = lac
            if self._lac_waits:
                self._lac_waits.risen(ledger_id, lac)
        self.adds += 1
        self.add_bytes += size
        self._checkpointer.schedule()
        self._journal.append(Kind.ENTRY, size, entry, done)

    def _refuse(self, done: AddDone, status: BookieStatus) -> None:
        self._loop.call_soon(done, status)

    def _register(self, ledger_id: int, master_key: bytes) -> LedgerState:
        state = self._table.register(ledger_id, master_key)
        if self._doubts(ledger_id):  # Its entries may be here, though its registration is not.
            state.tail_known = False
        body = encode_registration(ledger_id, master_key)
        self._journal.append(Kind.REGISTRATION, len(body), (body,), None)
        self._checkpointer.schedule()
        return state

    # Fencing.

    def _fence(self, ledger_id: int, master_key: bytes) -> tuple[BookieStatus, asyncio.Future[None] | None]:
        """Fence a ledger from this step on. The future, if any, is done when that is durable."""
        if not master_key or ledger_id < 0:
            return BookieStatus.UNAUTHORIZED, None
        state = self._table.get(ledger_id)
        if state is None:
            state = self._register(ledger_id, master_key)
        elif state.master_key != master_key and not self._adopted(state, master_key):
            return BookieStatus.UNAUTHORIZED, None
        return _OK, self._fence_state(state)

    def _fence_state(self, state: LedgerState) -> asyncio.Future[None] | None:
        if not state.fenced:
            state.fenced = True
            state.fencing = self._loop.create_future()
            self._table.changed(state)
            self._checkpointer.schedule()
            body = encode_registration(state.ledger_id, state.master_key)
            self._journal.append(Kind.FENCE, len(body), (body,), partial(_fence_is_durable, state))
            self._lac_waits.wake(state.ledger_id)
            log.info("ledger.fenced", ledger_id=state.ledger_id)
        return state.fencing

    def _adopted(self, state: LedgerState, master_key: bytes) -> bool:
        """A ledger that was fenced unasked has no key yet; it takes the first that comes."""
        if state.master_key or not master_key:
            return False
        state.master_key = master_key
        self._table.changed(state)
        return True

    async def _durable(self, written: asyncio.Future[None] | None) -> BookieStatus:
        """Every answer to a written request waits here, whatever it says."""
        if written is None:
            return _OK
        try:
            async with asyncio.timeout(self.settings.fence_wait_s):
                await asyncio.shield(written)
        except TimeoutError:
            return BookieStatus.TIMEOUT
        return _OK

    # Reading.

    async def read_entry(
        self, ledger_id: int, entry_id: int, *, fence: bool = False, master_key: bytes = b""
    ) -> EntryRead:
        if not self._serving:
            return EntryRead(BookieStatus.UNREACHABLE)
        self.reads += 1
        status, fencing = self._fence(ledger_id, master_key) if fence else (_OK, None)
        if status is not _OK:
            return EntryRead(status)
        answer = await self._answers.entry(ledger_id, entry_id)
        status = await self._durable(fencing)
        return answer if status is _OK else EntryRead(status)

    async def read_entries(
        self, ledger_id: int, first: int, count: int, max_bytes: int, *, background: bool = False
    ) -> tuple[BookieStatus, list[bytes]]:
        if not self._serving:
            return BookieStatus.UNREACHABLE, []
        self.reads += 1
        if not background:
            return await self._answers.run(ledger_id, first, count, max_bytes)
        async with self._background_reads:  # They take one thread of several, and never the last.
            if not self._serving:
                return BookieStatus.UNREACHABLE, []
            return await self._answers.run(ledger_id, first, count, max_bytes)

    async def read_lac(self, ledger_id: int, *, fence: bool = False, master_key: bytes = b"") -> LacRead:
        if not self._serving:
            return LacRead(BookieStatus.UNREACHABLE)
        self.reads += 1
        status, fencing = self._fence(ledger_id, master_key) if fence else (_OK, None)
        if status is not _OK:
            return LacRead(status)
        answer = await self._answers.lac(ledger_id)
        status = await self._durable(fencing)
        return answer if status is _OK else LacRead(status)

    async def list_entries(self, ledger_id: int) -> EntryList:
        if not self._serving:
            return EntryList(BookieStatus.UNREACHABLE)
        self.reads += 1
        return await self._answers.list(ledger_id)

    async def wait_lac(self, ledger_id: int, above: int, timeout_s: float) -> LacRead:
        if not self._serving:
            return LacRead(BookieStatus.UNREACHABLE)
        self.reads += 1
        answer = await self._answers.wait_lac(ledger_id, above, timeout_s)
        return answer if self._serving else LacRead(BookieStatus.UNREACHABLE)

    def _doubts(self, ledger_id: int) -> bool:
        """Whether there may be more of a ledger than is found."""
        return bool(self.limbo and self.limbo.doubts(ledger_id)) or self._running.storage.doubt is not None

    # Limbo: see `integrity.py`.

    @property
    def may_be_registered(self) -> bool:
        """False while fences may be missing."""
        return self.limbo.reason is None or self._fences_are_back

    @property
    def sequences(self) -> Mapping[str, int]:
        """By directory, how many records its journal has made durable over all times: an older copy has fewer."""
        return {self.instance_id: self._journal.durable.sequence}

    @property
    def first_sequences(self) -> Mapping[str, int]:
        """What `sequences` were found to be at the start."""
        self._expect_serving()
        return {self.instance_id: self._running.first_sequence}

    @property
    def in_doubt(self) -> str | None:
        """Why entries that are not found may be stored all the same, limbo apart."""
        self._expect_serving()
        return self._running.storage.doubt

    async def forget_missing_logs(self) -> None:
        """What lay in entry logs that are gone counts as missing from now on."""
        await self.in_storage_thread(self.storage.forget_missing_logs)

    async def enter_limbo(self, reason: str) -> None:
        """From now on, and over restarts, deny nothing and take no ordinary adds."""
        self._expect_serving()
        limbo = Limbo(reason, self._clock.time_ms(), self.limbo.ledgers)
        self.limbo, self._fences_are_back = limbo, False
        self._table.doubt_tails()
        self._mode.set("limbo", reason)
        log.error("bookie.in_limbo", bookie=self.bookie_id, reason=reason)
        await self.in_storage_thread(self._running.limbo_file.write, limbo)

    async def leave_limbo(self, lost: Collection[int]) -> None:
        """All that metadata names this bookie for is here again, save perhaps something of the ledgers in `lost`."""
        self._expect_serving()
        limbo = Limbo(ledgers=frozenset(lost))
        if limbo == self.limbo and self._running.storage.doubt is None:
            return
        was = self.limbo
        await self.checkpoint()
        if limbo.ledgers - was.ledgers:  # Before the doubt ends: at no moment is denied what they lack.
            self.limbo = Limbo(was.reason, was.since_ms, was.ledgers | limbo.ledgers)
            await self.in_storage_thread(self._running.limbo_file.write, self.limbo)
        await self.in_storage_thread(self._running.storage.end_doubt)
        await self.in_storage_thread(self._running.limbo_file.write, limbo)
        self.limbo = limbo
        self._mode.set("limbo", None)
        if was != limbo:
            log.info("bookie.out_of_limbo", bookie=self.bookie_id, ledgers_with_losses=len(limbo.ledgers))

    async def fence_unasked(self, ledger_ids: Collection[int]) -> None:
        """Fence ledgers, known or not, without their keys: durably, when this returns."""
        self._expect_serving()
        fencing: list[asyncio.Future[None]] = []
        for ledger_id in ledger_ids:
            state = self._table.get(ledger_id)
            if state is None:
                state = self._register(ledger_id, b"")
            durable = self._fence_state(state)
            if durable is not None:
                fencing.append(durable)
        if fencing:
            await asyncio.wait(fencing)

    def fences_are_back(self) -> None:
        """All ledgers that metadata names this bookie for are fenced."""
        self._fences_are_back = True

    def remember(self, ledger_id: int, master_key: bytes) -> None:
        """A ledger of which entries were found is known from now on, if the table had lost it."""
        if ledger_id not in self._table:
            self._register(ledger_id, master_key)

    async def held(self, ledger_id: int) -> list[tuple[int, int]]:
        """The entries found of a ledger, doubt or not. Raises: ReadFailed."""
        self._expect_serving()
        return await self._reader.ranges(ledger_id)

    async def add_repaired(
        self, ledger_id: int, entry_id: int, entry: bytes, master_key: bytes
    ) -> BookieStatus:
        """Keep an entry that a peer had: durably, when this returns OK."""
        state = self._table.get(ledger_id)
        key = master_key or (state.master_key if state is not None else b"")
        if state is None and not key:  # Whoever asks for it first brings the key.
            await self.fence_unasked([ledger_id])
        added: asyncio.Future[BookieStatus] = self._loop.create_future()
        flags = AddFlags.RECOVERY | AddFlags.BACKGROUND
        self.add_entry(ledger_id, entry_id, (entry,), flags, key, partial(tell, added))
        return await added

    # Explicit LAC, information, deletion.

    async def write_lac(self, ledger_id: int, lac: int, master_key: bytes = b"") -> BookieStatus:
        if not self._serving:
            return BookieStatus.UNREACHABLE
        if lac < NO_LAC or ledger_id < 0:
            return BookieStatus.BAD_REQUEST
        state = self._table.get(ledger_id)
        if not master_key:
            return BookieStatus.UNAUTHORIZED
        if state is not None and state.master_key != master_key and not self._adopted(state, master_key):
            return BookieStatus.UNAUTHORIZED
        if state is None:
            state = self._register(ledger_id, master_key)
        if lac > state.explicit_lac:
            state.explicit_lac = lac
            self._table.changed(state)
            self._checkpointer.schedule()
        # One that is not news is written all the same: what told us of it may not be durable yet.
        durable: asyncio.Future[None] = self._loop.create_future()
        body = encode_explicit_lac(ledger_id, lac, master_key)
        self._journal.append(
            Kind.EXPLICIT_LAC, len(body), (body,), partial(self._lac_is_durable, state, lac, durable)
        )
        return await self._durable(durable)

    def _lac_is_durable(
        self, state: LedgerState, lac: int, durable: asyncio.Future[None], status: BookieStatus
    ) -> None:
        state.lac = max(state.lac, lac)
        self._lac_waits.risen(state.ledger_id, state.lac)
        if not durable.done():
            durable.set_result(None)

    async def info(self) -> BookieInfo:
        free_bytes = await asyncio.to_thread(self._free_bytes)
        return BookieInfo(free_bytes, self.total_bytes, self.read_only)

    async def delete_ledger(self, ledger_id: int) -> None:
        """Forget a ledger that its owner has deleted. Its bytes go when garbage is collected."""
        await self.delete_ledgers([ledger_id])

    async def delete_ledgers(self, ledger_ids: Collection[int]) -> None:
        self._expect_serving()
        gone = [ledger_id for ledger_id in ledger_ids if self._table.remove(ledger_id)]
        for ledger_id in gone:
            self._cache.drop_ledger(ledger_id)
            self._lac_waits.wake(ledger_id)
            self._read_cache.drop_ledger(ledger_id)
            self.damaged.drop_ledger(ledger_id)
        if gone:
            self._checkpointer.schedule()
            # Behind a flush that may be running in the same thread, and so after whatever that has indexed.
            await self.in_storage_thread(self._running.storage.delete_ledgers, gone)

    # For garbage collection and tests.

    @property
    def storage(self) -> Storage:
        self._expect_serving()
        return self._running.storage

    @property
    def shares(self) -> tuple[Bookie, ...]:
        """The bookies it consists of, each on a directory of its own: see `several.py`."""
        return (self,)

    def knows(self, ledger_id: int) -> bool:
        return ledger_id in self._table

    def ledgers(self) -> set[int]:
        """The ledgers this bookie knows of at this moment."""
        self._expect_serving()
        return set(self._table)

    async def checkpoint(self) -> None:
        """Flush the write cache and move the mark, covering everything taken before this call."""
        self._expect_serving()
        await self._checkpointer.run()

    async def in_storage_thread(self, function: Callable[..., _T], *arguments: object) -> _T:
        """Run something that writes to storage, in its turn."""
        try:
            return await self._loop.run_in_executor(self._storage_thread, function, *arguments)
        except DiskFailed as error:
            self._on_disk_failure(error)
            raise

    def _expect_serving(self) -> None:
        if not self._serving:
            raise BookieNotRunning

    # Space.

    def _free_bytes(self) -> int:
        return self._disk.free_bytes(self.settings.directory)

    def set_read_only(self, cause: str, reason: str | None) -> None:
        """Take no ordinary adds while any cause has a reason not to; None takes this one's back."""
        self._mode.set(cause, reason)

    @property
    def read_only_reasons(self) -> Mapping[str, str]:
        """Why it takes no ordinary adds, by cause: `space`, `wanted`, `limbo`."""
        return self._mode.reasons

    @property
    def fullness(self) -> Fullness:
        return self._mode.fullness

    @property
    def free_bytes(self) -> int:
        """Space on its disk when that was last looked at."""
        return self._mode.free_bytes

    @property
    def total_bytes(self) -> int:
        return self._mode.total_bytes

    def _on_read_only(self, read_only: bool) -> None:
        self.read_only = read_only
        self._on_news()

    def _on_news(self) -> None:
        if self.on_mode_change is not None:
            self.on_mode_change()

    def _on_filling(self) -> None:
        if self.on_disk_filling is not None:
            self.on_disk_filling()

    # Metrics.

    def metrics(self) -> Iterator[Sample]:
        labels = {"bookie": self.bookie_id}
        if self._share is not None:
            labels["share"] = str(self._share.number)
        yield gauge("bookie_SERVER_STATUS", int(self._serving and not self.read_only), labels)
        if not self._serving:
            return
        yield counter("bookkeeper_server_ADD_ENTRY_count", self.adds, labels)
        yield counter("bookkeeper_server_READ_ENTRY_count", self.reads, labels)
        yield counter("bookie_WRITE_BYTES", self.add_bytes, labels)
        entrance, checkpointer, rebuild = self._entrance, self._checkpointer, self._index_rebuild
        yield from serving_samples(
            labels, entrance, self._read_cache, checkpointer, rebuild, self.limbo, self._mode
        )
        yield from self._running.samples(labels)
        for companion in self.companions:
            yield from companion()


def _fence_is_durable(state: LedgerState, status: BookieStatus) -> None:
    fencing, state.fencing = state.fencing, None
    if fencing is not None and not fencing.done():
        fencing.set_result(None)
