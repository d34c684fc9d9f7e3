"""A client's ways to production bookies: what is on them is lost, late, doubled, or overtakes the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from magnetar.bookie.bookie import Bookie
from magnetar.ledger.provider import MetadataBookieProvider
from magnetar.protocol.bookie import (
    AddDone,
    AddFlags,
    BookieConnection,
    BookieInfo,
    BookieStatus,
    EntryList,
    EntryRead,
    LacRead,
)
from magnetar.protocol.buffers import Buffer
from magnetar.simulation.cluster import Cluster
from magnetar.simulation.process_loop import Process
from magnetar.simulation.store_session import SimulatedStore

if TYPE_CHECKING:
    from magnetar.simulation.bookie_node import BookieNode

T = TypeVar("T")
_SWEEP_S = 0.25


class SimulatedConnection:
    """A client's way to one bookie: requests and answers are lost, late, doubled, or overtake each other."""

    def __init__(self, cluster: Cluster, client: Process, node: BookieNode, timeout_s: float) -> None:
        self.bookie_id = node.name
        self._cluster = cluster
        self._client = client
        self._node = node
        self._timeout_s = timeout_s
        self._loop = cluster.loop
        self._next = 0
        self._waiting: dict[int, tuple[float, Callable[[Any], None], Callable[[BookieStatus], Any]]] = {}
        self._sweeping = False

    # The requests.

    def add_entry(
        self,
        ledger_id: int,
        entry_id: int,
        parts: Sequence[Buffer],
        flags: AddFlags,
        master_key: bytes,
        done: AddDone,
    ) -> None:
        cluster, node = self._cluster, self._node
        writes_back, plain = bool(flags & AddFlags.RECOVERY), not flags
        if not writes_back:
            cluster.judge.sent(self._client.name, ledger_id, entry_id)
        what = "write-back" if writes_back else "add"

        def arrive(bookie: Bookie, reply: Callable[[BookieStatus], None]) -> None:
            arrived, refuses = cluster.loop.now, plain and bookie.read_only

            def answered(status: BookieStatus) -> None:
                cluster.judge.added(node.name, ledger_id, entry_id, writes_back, status, arrived, refuses)
                reply(status)

            bookie.add_entry(ledger_id, entry_id, parts, flags, master_key, answered)

        self._request(f"{what} {ledger_id}:{entry_id}", arrive, lambda status: status, done)

    async def read_entry(
        self, ledger_id: int, entry_id: int, *, fence: bool = False, master_key: bytes = b""
    ) -> EntryRead:
        node, judge = self._node, self._cluster.judge
        if fence:
            judge.fencing_read(self._client.name, ledger_id)

        async def serve(bookie: Bookie) -> EntryRead:
            had_it = judge.had(node.name, ledger_id, entry_id)
            answer = await bookie.read_entry(ledger_id, entry_id, fence=fence, master_key=master_key)
            judge.read_answered(node.name, ledger_id, entry_id, answer.status, had_it)
            if fence:
                judge.fence_answered(node.name, ledger_id, answer.status)
            return answer

        what = "fencing read" if fence else "read"
        answer = await self._ask(f"{what} {ledger_id}:{entry_id}", serve, EntryRead)
        if fence and answer.status.is_negative:
            judge.denied(self._client.name, node.name, ledger_id, entry_id)
        weather, dice = self._cluster.weather, self._cluster.dice
        if answer.entry and weather.corrupt and dice.random() < weather.corrupt:
            flipped = bytearray(answer.entry)
            flipped[dice.randrange(len(flipped))] ^= 1 << dice.randrange(8)
            return EntryRead(answer.status, bytes(flipped), answer.lac)
        return answer

    async def read_entries(
        self, ledger_id: int, first: int, count: int, max_bytes: int, *, background: bool = False
    ) -> tuple[BookieStatus, list[bytes]]:
        def serve(bookie: Bookie) -> Coroutine[Any, Any, tuple[BookieStatus, list[bytes]]]:
            return bookie.read_entries(ledger_id, first, count, max_bytes, background=background)

        return await self._ask(f"read run {ledger_id}:{first}+{count}", serve, lambda status: (status, []))

    async def read_lac(self, ledger_id: int, *, fence: bool = False, master_key: bytes = b"") -> LacRead:
        node, judge = self._node, self._cluster.judge
        if fence:
            judge.fencing(self._client.name, ledger_id)

        async def serve(bookie: Bookie) -> LacRead:
            answer = await bookie.read_lac(ledger_id, fence=fence, master_key=master_key)
            if fence:
                judge.fence_answered(node.name, ledger_id, answer.status)
                if self._cluster.dark_after_fence == node.name:
                    self._cluster.dark_after_fence = ""
                    self._loop.call_soon(node.go_dark, context=self._cluster.outside)
            return answer

        return await self._ask(f"{'fence' if fence else 'read lac'} {ledger_id}", serve, LacRead)

    async def write_lac(self, ledger_id: int, lac: int, master_key: bytes = b"") -> BookieStatus:
        return await self._ask(
            f"write lac {ledger_id}",
            lambda bookie: bookie.write_lac(ledger_id, lac, master_key),
            lambda status: status,
        )

    async def list_entries(self, ledger_id: int) -> EntryList:
        return await self._ask(
            f"list {ledger_id}",
            lambda bookie: bookie.list_entries(ledger_id),
            lambda status: EntryList(status),
        )

    async def wait_lac(self, ledger_id: int, above: int, timeout_s: float) -> LacRead:
        return await self._ask(
            f"wait lac {ledger_id}",
            lambda bookie: bookie.wait_lac(ledger_id, above, min(timeout_s, self._timeout_s / 2)),
            LacRead,
        )

    async def info(self) -> BookieInfo:
        return await self._ask("info", lambda bookie: bookie.info(), lambda status: BookieInfo(0, 0, True))

    async def close(self) -> None:
        """Nothing is held."""

    def reset(self) -> None:
        """Give up all that waits."""
        waiting, self._waiting = self._waiting, {}
        for _, done, failed in waiting.values():
            self._loop.call_soon(done, failed(BookieStatus.UNREACHABLE))

    # There and back.

    async def _ask(
        self,
        what: str,
        serve: Callable[[Bookie], Coroutine[Any, Any, T]],
        failed: Callable[[BookieStatus], T],
    ) -> T:
        answer: asyncio.Future[T] = self._loop.create_future()
        node = self._node

        def arrive(bookie: Bookie, reply: Callable[[T], None]) -> None:
            async def served() -> None:
                reply(await serve(bookie))

            process = node.process
            assert process is not None
            process.run(served())

        def done(result: T) -> None:
            if not answer.done():
                answer.set_result(result)

        self._request(what, arrive, failed, done)
        return await answer

    def _request(
        self,
        what: str,
        arrive: Callable[[Bookie, Callable[[T], None]], None],
        failed: Callable[[BookieStatus], T],
        done: Callable[[T], None],
    ) -> None:
        cluster, node, number = self._cluster, self._node, self._next
        self._next += 1
        self._waiting[number] = (cluster.loop.now + self._timeout_s, done, failed)
        if not self._sweeping:
            self._sweeping = True
            self._client.call_later(_SWEEP_S, self._sweep)
        if not cluster.passes(self._client.name, node.name):
            cluster.history.passed(self._client.name, node.name, what, "lost")
            return

        def reply(result: T) -> None:
            if cluster.passes(node.name, self._client.name):
                self._client.call_later(cluster.delay(), self._answered, number, result)

        def delivered() -> None:
            bookie = node.bookie
            cluster.history.passed(self._client.name, node.name, what)
            if bookie is None:
                reply(failed(BookieStatus.UNREACHABLE))
            else:
                arrive(bookie, reply)

        self._deliver(delivered)
        if cluster.weather.duplicate and cluster.dice.random() < cluster.weather.duplicate:
            self._deliver(delivered)

    def _deliver(self, delivered: Callable[[], None]) -> None:
        """To whichever process is there then."""
        cluster, node = self._cluster, self._node

        def at_the_machine() -> None:
            process = node.process
            if process is not None:
                process.call_now(delivered)
            elif node.disk.gone:
                return  # Switched off for good: nobody says so.
            else:
                delivered()

        cluster.loop.call_at(cluster.loop.now + cluster.delay(), at_the_machine, context=node.outside)

    def _answered(self, number: int, result: Any) -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is not None:
            waiting[1](result)

    def _sweep(self) -> None:
        now = self._loop.now
        late = []
        for number, waiting in self._waiting.items():
            if waiting[0] > now:
                break
            late.append(number)
        for number in late:
            _, done, failed = self._waiting.pop(number)
            done(failed(BookieStatus.TIMEOUT))
        self._sweeping = bool(self._waiting)
        if self._sweeping:
            self._client.call_later(_SWEEP_S, self._sweep)


class SimulatedProvider(MetadataBookieProvider):
    """The production provider, with other ways to the bookies it finds."""

    def __init__(self, cluster: Cluster, client: Process, store: SimulatedStore, timeout_s: float) -> None:
        super().__init__(store)
        self._cluster = cluster
        self._client = client
        self._timeout_s = timeout_s
        self._ways: dict[str, SimulatedConnection] = {}

    def connection(self, bookie_id: str) -> BookieConnection:
        way = self._ways.get(bookie_id)
        if way is None:
            node = self._cluster.nodes[bookie_id]
            way = self._ways[bookie_id] = SimulatedConnection(
                self._cluster, self._client, node, self._timeout_s
            )
        return way

    def reset(self, bookie_id: str) -> None:
        way = self._ways.get(bookie_id)
        if way is not None:
            way.reset()
