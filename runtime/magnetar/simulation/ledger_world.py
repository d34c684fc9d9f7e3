"""One ledger, one writer, and clients that recover it while it may still be writing; and what must hold.

The story is drawn from a seed: quorums, faults of network, bookies and metadata, when the writer pauses,
closes or is deposed, which bookies crash and come back. At the end everything heals, the ledger is recovered
once more, and the history is judged by the invariants of the storage fact sheet (I1-I10).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerError, NoSuchLedger
from magnetar.ledger.metadata import LedgerMetadata, decode_metadata, ledger_path
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.ledger.writer import LedgerWriter
from magnetar.metadata.memory import MemoryEnsemble
from magnetar.simulation.bookies import BookieFaults, MemoryBookie, MemoryBookies
from magnetar.simulation.loop import VirtualClock, VirtualLoop
from magnetar.simulation.metadata import FaultyStore, MetadataFaults

SHAPES = ((3, 3, 2), (3, 3, 2), (3, 2, 2), (4, 3, 2), (5, 3, 2), (4, 4, 3), (2, 2, 1), (3, 3, 3), (5, 4, 2))
"""Ensembles, write quorums and ack quorums that stories are about."""
RACING_SHAPES = ((3, 3, 2),)
THIN_SHAPES = ((3, 3, 1), (4, 4, 1), (5, 5, 2), (5, 4, 1), (5, 5, 1))
"""Those in which most of a write set may know nothing of an acknowledged entry."""


class InvariantBroken(AssertionError):
    """What must never happen has happened; the seed tells the story again."""


@dataclass(slots=True)
class AckedEntry:
    entry_id: int
    payload: bytes
    sent_at: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a story came to, for those who want to know that stories are worth telling."""

    appended: int
    acked: int
    last_entry: int
    recoveries: int
    ensemble_changes: int
    fenced: bool


class LedgerWorld:
    def __init__(
        self,
        seed: int,
        *,
        entries: int = 30,
        shapes: Sequence[tuple[int, int, int]] = SHAPES,
        racing: bool = False,
    ) -> None:
        """`racing`: a recovery comes amid the appends, and for each of the two other ways to bookies are slow."""
        self.seed = seed
        self._racing = racing
        self._dice = random.Random(seed)
        self._entries = entries
        self._loop = VirtualLoop()
        self._clock = VirtualClock(self._loop)
        self._ensemble = MemoryEnsemble()
        self.shape = self._dice.choice(shapes)
        self.bookies = {
            f"bookie-{number}": MemoryBookie(f"bookie-{number}")
            for number in range(self.shape[0] + self._dice.randint(0, 2))
        }
        self.acked: list[AckedEntry] = []
        self._sent: list[tuple[bytes, float]] = []
        self._covered_at: float | None = None
        """When the first recovery had fenced enough to begin to read."""
        self._closed: LedgerMetadata | None = None
        self._writer: LedgerWriter | None = None
        self._ledger_id = -1
        self._recoveries = 0
        self._changes = 0
        self._writer_ended: LedgerError | None = None
        self._broken: str | None = None
        self._views: list[MemoryBookies] = []
        """Of the bookies: the writer's first, then those of the clients that recover."""

    def run(self) -> Outcome:
        """Tell the story.

        Raises:
            InvariantBroken
        """
        outcome = self._loop.run(self._story())
        if self._broken is not None:
            raise InvariantBroken(self._broken)
        return outcome

    # The story.

    async def _story(self) -> Outcome:
        chaos = self._dice.random() if not self._racing else 0.0
        bookie_faults = BookieFaults(
            drop=self._dice.choice((0.0, 0.02, 0.1)) * chaos,
            linger=self._dice.choice((0.0, 0.05, 0.2)) * chaos,
            fail=self._dice.choice((0.0, 0.02, 0.1)) * chaos,
            corrupt=self._dice.choice((0.0, 0.1)) * chaos,
            delay_s=0.02,
        )
        metadata_faults = MetadataFaults(
            lost_request=0.1 * chaos, lost_answer=0.1 * chaos, late=0.05 * chaos, delay_s=0.02
        )
        writing = self._client(bookie_faults, metadata_faults)
        self._writer = await self._create(writing)
        self._ledger_id = self._writer.ledger_id
        work = [self._write(self._writer)]
        if self._racing:
            work.append(self._race(bookie_faults, metadata_faults))
        else:
            work += [
                self._recover(self._client(bookie_faults, metadata_faults), self._dice.random() * 1.5)
                for _ in range(self._dice.choice((0, 1, 1, 2, 3)))
            ]
            work += [
                self._crash_one(self._dice.random() * 1.5) for _ in range(self._dice.choice((0, 0, 1, 2, 4)))
            ]
        if self._dice.random() < 0.5 and not self._racing:
            work.append(self._split())
        await asyncio.gather(*work)
        await self._heal_and_judge()
        return Outcome(
            len(self._sent),
            len(self.acked),
            -1 if self._closed is None else self._closed.last_entry,
            self._recoveries,
            self._changes,
            self._writer_ended is not None,
        )

    def _client(self, faults: BookieFaults, metadata_faults: MetadataFaults) -> LedgerClient:
        dice = random.Random(self._dice.getrandbits(64))
        store = FaultyStore(self._ensemble.connect(self._clock), dice, metadata_faults, self._written)

        def way() -> BookieFaults:
            """Some ways are slow, and some lose every other message, for this client alone."""
            draw = dice.random()
            if not faults.drop and not faults.linger:
                return faults
            if draw < 0.2:
                return replace(faults, delay_s=0.5)
            return replace(faults, drop=0.5) if draw < 0.3 else faults

        bookies = MemoryBookies(self.bookies, dice, way, self._asked)
        self._views.append(bookies)
        settings = LedgerClientSettings(
            ensemble_retry_s=0.3,
            quarantine_s=1.0,
            metadata_retry_s=5.0,
            recovery_window=dice.choice((1, 2, 8)),
        )
        return LedgerClient(store, bookies, clock=self._clock, random=dice, settings=settings)

    async def _create(self, client: LedgerClient) -> LedgerWriter:
        while True:
            try:
                return await client.create(*self.shape)
            except LedgerError:
                await asyncio.sleep(0.1)

    async def _write(self, writer: LedgerWriter) -> None:
        """Append, in bursts, until done or deposed; sometimes pause for long, sometimes close."""
        while len(self._sent) < self._entries:
            for _ in range(self._dice.randint(1, 5)):
                if not self._append(writer):
                    return
            pause_s = self._dice.choice((0.02, 3.0) if self._racing else (0.0, 0.02, 0.1, 0.3, 0.6))
            if pause_s:
                await asyncio.sleep(pause_s * self._dice.random())
        await asyncio.sleep(self._dice.random() * 2)
        if self._dice.random() < 0.5:
            try:
                last = await writer.close()
            except LedgerError as error:
                self._writer_ended = error
            else:
                self._check(
                    last >= self._last_acked, f"closed at {last} after entry {self._last_acked} was acked"
                )

    def _append(self, writer: LedgerWriter) -> bool:
        payload = self._dice.randbytes(self._dice.randint(0, 20))
        sent_at = self._loop.time()

        def done(entry_id: int, error: LedgerError | None) -> None:
            if error is not None:
                self._writer_ended = error
                return
            expected = self._last_acked + 1
            self._check(entry_id == expected, f"entry {entry_id} acked where {expected} was due (I2)")
            self._check(
                self._covered_at is None or sent_at <= self._covered_at,
                f"entry {entry_id} was sent after an ack quorum was fenced, and acked (I5)",
            )
            self.acked.append(AckedEntry(entry_id, payload, sent_at))

        try:
            writer.append((payload,), done)
        except LedgerError as error:
            self._writer_ended = error
            return False
        self._sent.append((payload, sent_at))
        return True

    async def _recover(self, client: LedgerClient, start_after_s: float) -> None:
        await asyncio.sleep(start_after_s)
        for _ in range(self._dice.randint(1, 3)):
            try:
                reader = await client.open(self._ledger_id, recover=True)
            except NoSuchLedger:
                raise
            except LedgerError:
                await asyncio.sleep(self._dice.random())
                continue
            self._recoveries += 1
            last = reader.last_confirmed
            self._check(
                last >= self._last_acked, f"recovered at {last} after entry {self._last_acked} was acked (I4)"
            )
            return

    async def _race(self, bookie_faults: BookieFaults, metadata_faults: MetadataFaults) -> None:
        """The fence of one bookie is lost, where the writer's messages come late; another answers the recovery late."""
        assert self._writer is not None
        unfenced, late, other = self._dice.sample(self._writer.metadata.segments[0].ensemble, 3)
        for bookie in (unfenced, other):
            self._views[0].connection(bookie).delay_more(0.5)
        client = self._client(bookie_faults, metadata_faults)
        view = self._views[-1]
        view.connection(late).delay_more(0.1)
        view.connection(unfenced).lose_next = 1
        enough = self._dice.randint(1, 15)
        while len(self._sent) < enough:  # noqa: ASYNC110  # Time is virtual.
            await asyncio.sleep(0.01)
        await self._recover(client, self._dice.random() * 0.02)

    async def _crash_one(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        bookie = self._dice.choice(list(self.bookies.values()))
        if not bookie.up:
            return
        bookie.crash()
        await asyncio.sleep(self._dice.choice((0.2, 1.0, 4.0)))
        bookie.restart()

    async def _split(self) -> None:
        """For some moments, the writer sees one part of the bookies, and those that recover the others."""
        names = list(self.bookies)
        for _ in range(self._dice.randint(1, 4)):
            await asyncio.sleep(self._dice.random() * 0.5)
            seen = set(self._dice.sample(names, self._dice.randint(1, len(names) - 1)))
            self._cut(partial(_apart, seen))
            await asyncio.sleep(self._dice.random() * 0.8)
            self._cut(_together)

    def _cut(self, is_cut: Callable[[int, str], bool]) -> None:
        for number, client in enumerate(self._views):
            for bookie in self.bookies:
                client.connection(bookie).cut = is_cut(number, bookie)

    async def _heal_and_judge(self) -> None:
        for bookie in self.bookies.values():
            bookie.restart()
        client = self._client(BookieFaults(delay_s=0.001), MetadataFaults())
        try:
            reader = await client.open(self._ledger_id, recover=True)
            metadata = await client.metadata_of(self._ledger_id)
            found: list[bytes] = []
            while len(found) <= reader.last_confirmed:
                run = await reader.read(len(found), reader.last_confirmed)
                found += [bytes(entry.payload) for entry in run]
        except LedgerError as error:
            self._check(False, f"all bookies are there, and yet: {error} (I1, I31)")
            return
        self._check(metadata.closed, "a recovery that succeeded left the ledger open")
        self._check(
            metadata.last_entry >= self._last_acked, f"entry {self._last_acked} was acked and is lost (I1)"
        )
        for entry_id, payload in enumerate(found):
            self._check(
                payload == self._sent[entry_id][0],
                f"entry {entry_id} has other bytes than were appended (I1)",
            )
        length = sum(len(payload) for payload in found)
        self._check(
            metadata.length == length, f"length {metadata.length} where the entries have {length} bytes (I3)"
        )
        for acked in self.acked:
            self._judge_replicas(metadata, acked.entry_id)

    def _judge_replicas(self, metadata: LedgerMetadata, entry_id: int) -> None:
        """I8: an acked entry is where the metadata says, often enough."""
        holders = [
            bookie
            for bookie in metadata.fragment_of(entry_id).write_set(entry_id)
            if self.bookies[bookie].holds(self._ledger_id, entry_id)
        ]
        self._check(
            len(holders) >= metadata.ack_quorum,
            f"entry {entry_id} was acked, and of its replicas only {holders} have it (I8)",
        )

    # What is watched.

    def _written(self, path: str, value: bytes) -> None:
        """A metadata record has changed."""
        if self._ledger_id < 0 or path != ledger_path(self._ledger_id):
            return
        metadata = decode_metadata(self._ledger_id, value)
        if self._closed is not None:
            self._check(
                (metadata.last_entry, metadata.length, metadata.state)
                == (self._closed.last_entry, self._closed.length, self._closed.state),
                "a closed ledger has changed its end (I3, I9)",
            )
        if metadata.closed:
            self._closed = metadata
        self._changes += len(metadata.segments) > 1

    def _asked(self, what: str, bookie: str, ledger_id: int, entry_id: int, now: float) -> None:
        """A client asks a bookie. The first fenced read of an entry shows that a recovery has its coverage."""
        if what == "fenced_read" and self._covered_at is None:
            self._covered_at = now

    @property
    def _last_acked(self) -> int:
        return self.acked[-1].entry_id if self.acked else -1

    def _check(self, holds: bool, otherwise: str) -> None:
        """Remembered, because who calls back must not be able to swallow it."""
        if not holds and self._broken is None:
            self._broken = f"seed {self.seed}, {self.shape}: {otherwise}"


def _apart(seen: set[str], client: int, bookie: str) -> bool:
    """The writer, client 0, is cut from what the others see, and they from the rest."""
    return (bookie in seen) == (client == 0)


def _together(client: int, bookie: str) -> bool:
    return False
