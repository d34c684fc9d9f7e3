"""What a bookie is asked and what it answers: the border between the rooms `ledger` and `bookie`.

A bookie in the same process and one behind a socket answer to the same `BookieConnection`, so a ledger client
never knows which it has. Every answer carries a status of one of three classes, and safety rests on the
difference (source: BookKeeper BP-46):

- positive: the bookie has it, or has done it, durably;
- negative: the bookie vouches that it never had it (`NO_SUCH_ENTRY`, `NO_SUCH_LEDGER`);
- unknown: everything else. It counts for nothing when a recovery decides where a ledger ends.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import IntEnum, IntFlag
from typing import Protocol

from magnetar.protocol.buffers import Buffer

LAST_ENTRY = -1
"""As the entry id of a read: the last entry this bookie holds of the ledger."""

MAX_ENTRY_BYTES = 5 * 1024 * 1024 + 64 * 1024
"""The largest stored entry: Pulsar's largest message, the broker's metadata before it and the header."""

MAX_LIST_RANGES = 1_000_000
"""A list of a ledger's entries with more gaps than this is not answered but UNKNOWN."""

MAX_RUN_BYTES = 16 * 1024 * 1024
"""What a run of entries may weigh in all: an answer is a shorter run than was asked for."""

NO_LAC = -1
"""The last-add-confirmed of a ledger of which nothing is confirmed yet."""

REGISTRATION_VERSION = 1
AVAILABLE_PATH = "/ledgers/available"
"""Ephemeral `<AVAILABLE_PATH>/<bookie id>`: a `BookieAddress` as JSON with a format version."""
COOKIES_PATH = "/ledgers/cookies"
"""Persistent `<COOKIES_PATH>/<bookie id>`: which data directory belongs to the id."""
READ_ONLY_WANTED_PATH = "/ledgers/readonly_wanted"
"""Persistent `<READ_ONLY_WANTED_PATH>/<bookie id>`: there while an operator wants the bookie read-only."""


class BookieStatus(IntEnum):
    """How a request ended. The numbers go over the wire: add to them, never change one."""

    OK = 0
    NO_SUCH_ENTRY = 1
    NO_SUCH_LEDGER = 2
    FENCED = 3
    """Another client has begun recovery: the writer must stop, never retry."""
    READ_ONLY = 4
    UNKNOWN = 5
    """The bookie cannot vouch for either answer, e.g. while its index is in doubt."""
    IO_ERROR = 6
    TOO_MANY_REQUESTS = 7
    """The bookie could not take it in time: retry later or elsewhere."""
    UNAUTHORIZED = 8
    """The master key is missing, or not the one the ledger was written with."""
    BAD_REQUEST = 9
    TIMEOUT = 10
    UNREACHABLE = 11

    @property
    def is_positive(self) -> bool:
        return self is BookieStatus.OK

    @property
    def is_negative(self) -> bool:
        """Whether the bookie vouches that it never held what was asked for."""
        return self is BookieStatus.NO_SUCH_ENTRY or self is BookieStatus.NO_SUCH_LEDGER

    @property
    def is_unknown(self) -> bool:
        return not (self.is_positive or self.is_negative)


class AddFlags(IntFlag):
    NONE = 0
    RECOVERY = 1
    """Written by a recovery or a replicator: accepted although the ledger is fenced."""
    HIGH_PRIORITY = 2
    """Accepted by a read-only bookie while it has any reserve."""
    BACKGROUND = 4
    """Nobody waits for it: it may be held back while others write."""


@dataclass(slots=True)
class EntryRead:
    """The answer to a read.

    `entry` is the stored entry with its header, empty unless the status is OK. `lac` is the highest one the bookie has seen
    of late: a hint, where `LacRead` vouches.
    """

    status: BookieStatus
    entry: bytes = field(default=b"", repr=False)
    lac: int = NO_LAC


@dataclass(slots=True)
class LacRead:
    """The answer to a LAC read.

    `lac` is the greater of the explicit and the piggy-backed one; `last_entry` and `entry` are the last stored
    entry, -1 and empty where the bookie holds none. A fencing read of an unknown ledger fences it and answers OK.
    """

    status: BookieStatus
    lac: int = NO_LAC
    last_entry: int = -1
    entry: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class EntryList:
    """Which entries of a ledger a bookie holds: inclusive ranges, rising, with at least one gap between two.

    What is damaged is not in it. Only with OK does it vouch that it holds no others.
    """

    status: BookieStatus
    ranges: tuple[tuple[int, int], ...] = ()

    def __contains__(self, entry_id: int) -> bool:
        place = bisect_right(self.ranges, entry_id, key=lambda held: held[0]) - 1
        return place >= 0 and entry_id <= self.ranges[place][1]


@dataclass(frozen=True, slots=True)
class BookieInfo:
    """What a placement wants to know. A bookie that could not be asked counts as full and read-only."""

    free_bytes: int
    total_bytes: int
    read_only: bool


@dataclass(frozen=True, slots=True)
class BookieAddress:
    """Where a registered bookie listens. A new `incarnation` means that the process was started anew."""

    address: str
    incarnation: str
    read_only: bool = False
    domain: str = ""
    """What fails together, e.g. a machine or a power line. Empty: its host."""
    rack: str = ""
    """Its place in the network as a path, `/region/rack`. Empty: not said."""
    free_bytes: int = 0
    """Told anew when it has changed much."""
    total_bytes: int = 0

    @property
    def failure_domain(self) -> str:
        return self.domain or self.host

    def encode(self) -> bytes:
        """The value of a registration."""
        return json.dumps({"version": REGISTRATION_VERSION, **asdict(self)}).encode()

    @staticmethod
    def decode(value: bytes) -> BookieAddress:
        """What a registration says. Raises ValueError where it makes no sense to this version."""
        try:
            fields = json.loads(value)
            if fields["version"] != REGISTRATION_VERSION:
                raise ValueError(f"format version {fields['version']}")
            return BookieAddress(
                str(fields["address"]),
                str(fields["incarnation"]),
                bool(fields.get("read_only", False)),
                str(fields.get("domain", "")),
                str(fields.get("rack", "")),
                int(fields.get("free_bytes", 0)),
                int(fields.get("total_bytes", 0)),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"no registration of a bookie: {error!r}") from error

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])


AddDone = Callable[[BookieStatus], None]


class BookieConnection(Protocol):
    """One bookie, in this process or behind a socket. All methods belong to one event loop."""

    @property
    def bookie_id(self) -> str: ...

    def add_entry(
        self,
        ledger_id: int,
        entry_id: int,
        parts: Sequence[Buffer],
        flags: AddFlags,
        master_key: bytes,
        done: AddDone,
    ) -> None:
        """Store an entry, `parts` being the stored form with its 36-byte header (see `ledger_entry.py`).

        `done` is called once, on the loop and never from within this call: with OK once the entry is durable.
        The parts must not change afterwards. Adding the same entry again is answered like the first time.
        """
        ...

    async def read_entry(
        self, ledger_id: int, entry_id: int, *, fence: bool = False, master_key: bytes = b""
    ) -> EntryRead:
        """One entry (`LAST_ENTRY`: the last one held). With `fence`, the ledger is fenced, durably, first."""
        ...

    async def read_entries(
        self, ledger_id: int, first: int, count: int, max_bytes: int, *, background: bool = False
    ) -> tuple[BookieStatus, list[bytes]]:
        """The run of entries held from `first` on: at least one if `first` is held, at most `count` and about
        `max_bytes`. It ends before the first entry this bookie does not hold. `background`: nobody waits for it,
        and it may take its turn behind all others."""
        ...

    async def read_lac(self, ledger_id: int, *, fence: bool = False, master_key: bytes = b"") -> LacRead: ...

    async def write_lac(self, ledger_id: int, lac: int, master_key: bytes = b"") -> BookieStatus:
        """Keep an explicit LAC, durably. A lower one than is known changes nothing and is OK."""
        ...

    async def list_entries(self, ledger_id: int) -> EntryList:
        """Which entries it holds, from index and caches: not all of them need be durable yet."""
        ...

    async def wait_lac(self, ledger_id: int, above: int, timeout_s: float) -> LacRead:
        """Answers once its LAC is higher than `above`, or the ledger is fenced, or at the time-out with what it knows.

        The answer holds no entry. Of a ledger it does not know, NO_SUCH_LEDGER at the time-out.
        """
        ...

    async def info(self) -> BookieInfo: ...

    async def close(self) -> None: ...


class BookieProvider(Protocol):
    """Where a ledger client finds its bookies."""

    async def writable(self) -> Mapping[str, BookieAddress]:
        """The registered, writable bookies by id."""
        ...

    async def readable(self) -> Mapping[str, BookieAddress]:
        """All registered bookies by id: read-only ones too."""
        ...

    async def known(self) -> set[str]:
        """All bookies that ever were and were not decommissioned: those with a cookie, registered or not."""
        ...

    def connection(self, bookie_id: str) -> BookieConnection: ...

    def reset(self, bookie_id: str) -> None:
        """Give up what is on its way to a bookie behind a socket: it is answered UNREACHABLE, its memory freed."""
        ...

    async def close(self) -> None: ...


def master_key(password: bytes = b"") -> bytes:
    """What authorises adds and fences of a ledger: never empty. Source: BookKeeper `MacDigestManager`."""
    return hashlib.sha1(b"ledger" + password, usedforsecurity=False).digest()
