"""What ends a log: it is terminated while entries are appended, and deleted while it is read."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from magnetar.managed_ledger.errors import ManagedLedgerError
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.position import EARLIEST, Position

if TYPE_CHECKING:
    from magnetar.simulation.judge import Judge

_MB = 1 << 20


async def terminate_amid_appends(judge: Judge, log: ManagedLedger, count: int, at: int) -> None:
    """Append `count` entries, and terminate the log when `at` of them are sent.

    Each is either in the log or was refused, and nothing lies behind its end.
    """
    stored: dict[bytes, Position] = {}
    late: list[bytes] = []
    ended: Position | None = None

    def append(number: int) -> None:
        payload = b"last:%d" % number

        def done(position: Position | None, index: int, error: Exception | None) -> None:
            if position is not None:
                stored[payload] = position

        log.append((b"\x0e\x01", payload), 1, done)

    async def terminate() -> None:
        nonlocal ended
        ended = await log.terminate()

    ending: asyncio.Task[None] | None = None
    for number in range(count):
        if number == at:
            ending = asyncio.ensure_future(terminate())
        if ended is not None:
            late.append(b"last:%d" % number)
        append(number)
        if number % 5 == 0:
            await asyncio.sleep(0.001)
    try:
        if ending is not None:
            await ending
    except ManagedLedgerError:
        judge.met["terminations not finished"] += 1
        return
    await asyncio.sleep(1.0)
    assert ended is not None
    judge.met["terminations amid appends"] += 1
    judge.expect(
        "I3",
        all(position <= ended for position in stored.values()) and not set(late) & set(stored),
        f"the log was terminated at {ended}, and {max(stored.values(), default=EARLIEST)} was acknowledged",
    )
    reader = await log.open_cursor("last", durable=False, start=EARLIEST)
    found: dict[bytes, Position] = {}
    while reader.has_more():
        for entry in await reader.read(100, _MB):
            found[bytes(entry.data[2:])] = entry.position
    lost = [each for each in stored if found.get(each) != stored[each]]
    judge.expect("I1", not lost, f"{lost[:3]} were acknowledged before the log was terminated, and are lost")
    beyond = [each for each in found.values() if each > ended]
    judge.expect("I3", not beyond, f"the log was terminated at {ended}, and {beyond[:3]} can be read")


async def delete_amid_reads(
    judge: Judge, factory: ManagedLedgerFactory, log: ManagedLedger, sent: dict[bytes, float], after_s: float
) -> None:
    """Delete the log while it is read. What is read until then is what was appended."""

    async def read() -> None:
        try:
            reader = await log.open_cursor("until the end", durable=False, start=EARLIEST)
            last = EARLIEST
            while reader.has_more():
                for entry in await reader.read(5, _MB):
                    payload = bytes(entry.data[2:])
                    judge.expect(
                        "I3",
                        (payload in sent or payload.startswith(b"last:")) and entry.position > last,
                        f"while the log is deleted, {payload[:12]!r} is read at {entry.position} after {last}",
                    )
                    last = entry.position
        except ManagedLedgerError:
            judge.met["reads ended by a deletion"] += 1

    reading = asyncio.ensure_future(read())
    await asyncio.sleep(after_s)
    while True:
        try:
            await factory.delete(log.name)
            break
        except ManagedLedgerError:
            if not await _exists(factory, log.name):
                break
            await asyncio.sleep(0.2)
    await asyncio.wait([reading], timeout=30)
    judge.expect("I31", reading.done(), "a reader of a deleted log waits for ever")
    judge.met["deletions amid reads"] += 1


async def _exists(factory: ManagedLedgerFactory, name: str) -> bool:
    try:
        return await factory.exists(name)
    except ManagedLedgerError:
        return True
