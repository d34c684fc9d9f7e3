"""A bookie with several directories: a bookie in each, under one name.

Each of these shares has a journal, a write cache, entry logs, an index and a ledger table of its own, so what holds of one
bookie on one directory holds here: no mark covers two disks. A ledger belongs to one share, for ever: the one that knows
it. A new one goes where its id says, among those that take new ledgers. A share whose disk is full or fails is read-only
by itself; lost data anywhere puts all of them in limbo, for what a lost share knew nobody can say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeAlias

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.directory import COOKIE_FILE, Share
from magnetar.bookie.errors import BookieNotRunning, DirectoryDamaged, ForeignDirectory
from magnetar.bookie.limbo import Limbo, LimboFile, Losses
from magnetar.bookie.machine import THIS_MACHINE, Machine
from magnetar.bookie.reads import ReadFailed
from magnetar.bookie.settings import BookieSettings
from magnetar.bookie.shares import ListedShare, SharesFile, divided
from magnetar.bookie.space import Fullness
from magnetar.environment.clock import Clock
from magnetar.environment.disk import Disk, fail_stop
from magnetar.environment.logs import get_logger
from magnetar.metrics.sample import Sample, gauge
from magnetar.protocol.bookie import (
    AddDone,
    AddFlags,
    BookieInfo,
    BookieStatus,
    EntryList,
    EntryRead,
    LacRead,
)
from magnetar.protocol.buffers import Buffer

log = get_logger("magnetar.bookie")


class SeveralDirectories:
    """Has the interface of `Bookie`. Belongs to the loop it was started on."""

    def __init__(
        self,
        settings: BookieSettings,
        *,
        disk: Disk,
        clock: Clock,
        bookie_id: str,
        on_disk_failure: Callable[[BaseException], object] = fail_stop,
        machine: Machine = THIS_MACHINE,
    ) -> None:
        self.settings = settings
        self.bookie_id = bookie_id
        self.read_only = False
        """Whether no share takes ordinary adds."""
        self.on_mode_change: Callable[[], None] | None = None
        self.on_disk_filling: Callable[[], None] | None = None
        self.companions: list[Callable[[], Iterable[Sample]]] = []
        self._disk = disk
        self._clock = clock
        self._make = partial(
            Bookie,
            disk=disk,
            clock=clock,
            bookie_id=bookie_id,
            on_disk_failure=on_disk_failure,
            machine=machine,
        )
        self._shares: tuple[Bookie, ...] = ()
        self._chosen: dict[int, list[int]] = {}
        """Ledgers that are on their way to a share that does not know them yet: its number, and how many calls that is."""

    # Starting and stopping.

    async def start(self) -> None:
        """Open all directories, or make those that are new.

        Raises: what `Bookie.start` raises; of a directory that is missing, empty, swapped or not named any more, too.
        """
        settings = divided(self.settings)
        await asyncio.to_thread(self._disk.make_directory, settings[0].directory)
        file = SharesFile(self._disk, settings[0].directory)
        listed = await asyncio.to_thread(file.read)
        if len(listed) > len(settings):
            missing = ", ".join(str(each.directory) for each in listed[len(settings) :])
            raise ForeignDirectory(settings[0].directory, f"it goes with {missing}: name them, too")
        started: list[Bookie] = []
        try:
            for number, each in enumerate(settings):
                of = started[0].instance_id if started else ""
                if 0 < number < len(listed):
                    await asyncio.to_thread(self._expect_use, settings[0], each)
                share = self._make(each, share=Share(number, of))
                await share.start()
                started.append(share)
                if number < len(listed) and share.instance_id != listed[number].instance_id:
                    await asyncio.to_thread(self._expect_made_anew, settings[0], share)
            found = [
                ListedShare(share.instance_id, each.directory)
                for share, each in zip(started, settings, strict=True)
            ]
            if found != listed:
                await asyncio.to_thread(file.write, found)
            await self._share_limbo(started)
        except BaseException:
            for share in reversed(started):
                await share.stop()
            raise
        self._shares = tuple(started)
        for share in started:
            share.on_mode_change = self._on_mode_change
            share.on_disk_filling = self._on_disk_filling
        self._on_mode_change()

    def _expect_use(self, first: BookieSettings, settings: BookieSettings) -> None:
        """A directory that is listed is not new, however empty it is. Blocks."""
        if self._disk.exists(settings.directory / COOKIE_FILE):
            return
        losses = Losses(
            LimboFile(self._disk, first.directory), self._clock, may_go_on=first.on_lost_data == "limbo"
        )
        reason = (
            f"there is no {COOKIE_FILE}, though it has been in use: is a disk not mounted, or was it swapped?"
        )
        losses(DirectoryDamaged(settings.directory, reason))

    def _expect_made_anew(self, first: BookieSettings, share: Bookie) -> None:
        """Another directory than the one listed may only be what was made for that one's loss. Blocks."""
        noted = LimboFile(self._disk, first.directory).read()
        if noted.reason is None or share.ledgers():
            raise ForeignDirectory(
                share.settings.directory, "it is not the directory that was here: was the disk swapped?"
            )

    async def _share_limbo(self, shares: list[Bookie]) -> None:
        """What one has lost another may be asked for: a ledger that nobody knows could have been anywhere."""
        reasons = [share.limbo.reason for share in shares if share.limbo.reason is not None]
        first_file = LimboFile(self._disk, shares[0].settings.directory)
        noted = await asyncio.to_thread(first_file.read)  # Since the first share has started.
        if noted.reason is not None:
            reasons.append(noted.reason)
        if not reasons:
            return
        for share in shares:
            if share.limbo.reason is None:
                await share.enter_limbo(reasons[0])

    async def stop(self) -> None:
        shares, self._shares = self._shares, ()
        await asyncio.gather(*(share.stop() for share in shares))

    async def close(self) -> None:
        """A client lets go of its connection."""

    @property
    def shares(self) -> tuple[Bookie, ...]:
        """Raises: BookieNotRunning."""
        if not self._shares:
            raise BookieNotRunning
        return self._shares

    @property
    def instance_id(self) -> str:
        return self.shares[0].instance_id

    @property
    def directory_is_fresh(self) -> bool:
        return all(share.directory_is_fresh for share in self.shares)

    # Which share.

    def _of(self, ledger_id: int) -> Bookie:
        """The share that knows a ledger, or that it would be on."""
        shares = self._shares
        home = shares[ledger_id % len(shares)]
        if home.knows(ledger_id):
            return home
        for share in shares:
            if share.knows(ledger_id):
                return share
        chosen = self._chosen.get(ledger_id)
        if chosen is not None:
            return shares[chosen[0]]
        if home.read_only:
            taking = [share for share in shares if not share.read_only]
            if taking:
                return taking[ledger_id % len(taking)]
        return home

    @contextmanager
    def _kept(self, ledger_id: int) -> Iterator[Bookie]:
        """The share of a ledger, which stays so until it knows it or this is over."""
        share = self._of(ledger_id)
        if share.knows(ledger_id):
            yield share
            return
        self._choose(ledger_id, share)
        try:
            yield share
        finally:
            self._arrived(ledger_id)

    def _choose(self, ledger_id: int, share: Bookie) -> None:
        self._chosen.setdefault(ledger_id, [self._shares.index(share), 0])[1] += 1

    def _arrived(self, ledger_id: int) -> None:
        chosen = self._chosen[ledger_id]
        chosen[1] -= 1
        if not chosen[1]:
            del self._chosen[ledger_id]

    def _to_ask(self, ledger_id: int) -> Bookie:
        """The share to read from. One that cannot vouch for what it does not find speaks for an unknown ledger."""
        share = self._of(ledger_id)
        if share.knows(ledger_id):
            return share
        return next((each for each in self._shares if each.in_doubt is not None), share)

    # Adding and reading.

    def add_entry(
        self,
        ledger_id: int,
        entry_id: int,
        parts: Sequence[Buffer],
        flags: AddFlags,
        master_key: bytes,
        done: AddDone,
    ) -> None:
        if not self._shares:
            asyncio.get_running_loop().call_soon(done, BookieStatus.UNREACHABLE)
            return
        share = self._of(ledger_id)
        if not share.knows(ledger_id):
            self._choose(ledger_id, share)
            done = partial(self._added, ledger_id, done)
        share.add_entry(ledger_id, entry_id, parts, flags, master_key, done)

    def _added(self, ledger_id: int, done: AddDone, status: BookieStatus) -> None:
        self._arrived(ledger_id)
        done(status)

    async def read_entry(
        self, ledger_id: int, entry_id: int, *, fence: bool = False, master_key: bytes = b""
    ) -> EntryRead:
        if not self._shares:
            return EntryRead(BookieStatus.UNREACHABLE)
        share = self._of(ledger_id) if fence else self._to_ask(ledger_id)
        return await share.read_entry(ledger_id, entry_id, fence=fence, master_key=master_key)

    async def read_entries(
        self, ledger_id: int, first: int, count: int, max_bytes: int, *, background: bool = False
    ) -> tuple[BookieStatus, list[bytes]]:
        if not self._shares:
            return BookieStatus.UNREACHABLE, []
        share = self._to_ask(ledger_id)
        return await share.read_entries(ledger_id, first, count, max_bytes, background=background)

    async def read_lac(self, ledger_id: int, *, fence: bool = False, master_key: bytes = b"") -> LacRead:
        if not self._shares:
            return LacRead(BookieStatus.UNREACHABLE)
        share = self._of(ledger_id) if fence else self._to_ask(ledger_id)
        return await share.read_lac(ledger_id, fence=fence, master_key=master_key)

    async def list_entries(self, ledger_id: int) -> EntryList:
        if not self._shares:
            return EntryList(BookieStatus.UNREACHABLE)
        return await self._to_ask(ledger_id).list_entries(ledger_id)

    async def wait_lac(self, ledger_id: int, above: int, timeout_s: float) -> LacRead:
        if not self._shares:
            return LacRead(BookieStatus.UNREACHABLE)
        with self._kept(
            ledger_id
        ) as share:  # Whoever waits for a ledger that is to come waits where it will come.
            return await share.wait_lac(ledger_id, above, timeout_s)

    async def write_lac(self, ledger_id: int, lac: int, master_key: bytes = b"") -> BookieStatus:
        if not self._shares:
            return BookieStatus.UNREACHABLE
        return await self._of(ledger_id).write_lac(ledger_id, lac, master_key)

    async def info(self) -> BookieInfo:
        found = [await share.info() for share in self._by_disk()]
        free, total = sum(each.free_bytes for each in found), sum(each.total_bytes for each in found)
        return BookieInfo(free, total, self.read_only)

    async def delete_ledger(self, ledger_id: int) -> None:
        await self.delete_ledgers([ledger_id])

    async def delete_ledgers(self, ledger_ids: Collection[int]) -> None:
        for share in self.shares:
            await share.delete_ledgers([each for each in ledger_ids if share.knows(each)])

    def knows(self, ledger_id: int) -> bool:
        return any(share.knows(ledger_id) for share in self.shares)

    def ledgers(self) -> set[int]:
        return set().union(*(share.ledgers() for share in self.shares))

    async def checkpoint(self) -> None:
        await asyncio.gather(*(share.checkpoint() for share in self.shares))

    # Lost data.

    @property
    def limbo(self) -> Limbo:
        found = [share.limbo for share in self.shares]
        ledgers = frozenset[int]().union(*(each.ledgers for each in found))
        whole = next((each for each in found if each.reason is not None), None)
        return Limbo(ledgers=ledgers) if whole is None else Limbo(whole.reason, whole.since_ms, ledgers)

    @property
    def in_doubt(self) -> str | None:
        return next((share.in_doubt for share in self.shares if share.in_doubt is not None), None)

    @property
    def may_be_registered(self) -> bool:
        return all(share.may_be_registered for share in self.shares)

    @property
    def sequences(self) -> Mapping[str, int]:
        return {name: reached for share in self.shares for name, reached in share.sequences.items()}

    @property
    def first_sequences(self) -> Mapping[str, int]:
        return {name: reached for share in self.shares for name, reached in share.first_sequences.items()}

    async def enter_limbo(self, reason: str) -> None:
        for share in self.shares:
            await share.enter_limbo(reason)

    async def leave_limbo(self, lost: Collection[int]) -> None:
        for share in reversed(self.shares):  # The first one last: it has the list.
            await share.leave_limbo(lost)

    async def fence_unasked(self, ledger_ids: Collection[int]) -> None:
        by_share: dict[Bookie, list[int]] = {}
        for ledger_id in ledger_ids:
            by_share.setdefault(await self._holder(ledger_id), []).append(ledger_id)
        await asyncio.gather(*(share.fence_unasked(some) for share, some in by_share.items()))

    async def _holder(self, ledger_id: int) -> Bookie:
        """The share of a ledger; of one that none knows any more the one that has entries of it, for from here on only
        that is asked which knows it."""
        if not self.knows(ledger_id):
            for share in self.shares:
                try:
                    if await share.held(ledger_id):
                        return share
                except ReadFailed as error:
                    log.warning("share.not_searched", ledger_id=ledger_id, reason=str(error))
        return self._of(ledger_id)

    def fences_are_back(self) -> None:
        for share in self.shares:
            share.fences_are_back()

    def remember(self, ledger_id: int, master_key: bytes) -> None:
        self._of(ledger_id).remember(ledger_id, master_key)

    async def held(self, ledger_id: int) -> list[tuple[int, int]]:
        """A share that lost its table may have entries of a ledger that no share knows."""
        if self.knows(ledger_id):
            return await self._of(ledger_id).held(ledger_id)
        for share in self.shares:
            held = await share.held(ledger_id)
            if held:
                share.remember(ledger_id, b"")
                return held
        return []

    async def add_repaired(
        self, ledger_id: int, entry_id: int, entry: bytes, master_key: bytes
    ) -> BookieStatus:
        with self._kept(ledger_id) as share:
            return await share.add_repaired(ledger_id, entry_id, entry, master_key)

    async def forget_missing_logs(self) -> None:
        for share in self.shares:
            await share.forget_missing_logs()

    # Space and mode.

    def set_read_only(self, cause: str, reason: str | None) -> None:
        for share in self.shares:
            share.set_read_only(cause, reason)

    @property
    def read_only_reasons(self) -> Mapping[str, str]:
        """Why no share takes ordinary adds; empty while one does."""
        if not self.read_only:
            return {}
        return {cause: reason for share in self.shares for cause, reason in share.read_only_reasons.items()}

    @property
    def fullness(self) -> Fullness:
        """Of the fullest: it is the one that garbage is collected for."""
        return max(share.fullness for share in self.shares)

    @property
    def free_bytes(self) -> int:
        """Where new ledgers go."""
        return sum(share.free_bytes for share in self._by_disk() if not share.read_only)

    @property
    def total_bytes(self) -> int:
        return sum(share.total_bytes for share in self._by_disk())

    def _by_disk(self) -> tuple[Bookie, ...]:
        """One share for each directory of ledgers: several may take turns in one."""
        return self.shares[: max(1, len(self.settings.ledger_directories))]

    def _on_mode_change(self) -> None:
        self.read_only = all(share.read_only for share in self.shares)
        if self.on_mode_change is not None:
            self.on_mode_change()

    def _on_disk_filling(self) -> None:
        if self.on_disk_filling is not None:
            self.on_disk_filling()

    def metrics(self) -> Iterator[Sample]:
        labels = {"bookie": self.bookie_id}
        yield gauge("bookie_SERVER_STATUS", int(bool(self._shares) and not self.read_only), labels)
        yield gauge("bookie_writable_dirs", sum(not share.read_only for share in self._shares), labels)
        for share in self._shares:
            yield from share.metrics()
        for companion in self.companions:
            yield from companion()


AnyBookie: TypeAlias = Bookie | SeveralDirectories


def make_bookie(
    settings: BookieSettings,
    *,
    disk: Disk,
    clock: Clock,
    bookie_id: str,
    on_disk_failure: Callable[[BaseException], object] = fail_stop,
    machine: Machine = THIS_MACHINE,
) -> AnyBookie:
    """A bookie on the directories that its settings name."""
    shares = divided(settings)
    if len(shares) == 1:
        return Bookie(
            shares[0],
            disk=disk,
            clock=clock,
            bookie_id=bookie_id,
            on_disk_failure=on_disk_failure,
            machine=machine,
        )
    return SeveralDirectories(
        settings,
        disk=disk,
        clock=clock,
        bookie_id=bookie_id,
        on_disk_failure=on_disk_failure,
        machine=machine,
    )
