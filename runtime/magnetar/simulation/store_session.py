"""One process's session with the metadata store: answers are lost, listings cut short, watches late."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from magnetar.ledger.metadata import LEDGERS_PATH, decode_metadata, ledger_id_of
from magnetar.metadata.batch import Put, Write
from magnetar.metadata.errors import StoreUnavailable
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.store import Listener, Notification, SessionListener, SessionState, Versioned, Watch
from magnetar.simulation.cluster import Cluster
from magnetar.simulation.process_loop import Process

T = TypeVar("T")
_DATA_PATH = f"{LEDGERS_PATH}/data/"


class SimulatedStore:
    """A `MetadataStore`. What is written of ledgers is shown to the judge."""

    def __init__(self, cluster: Cluster, client: Process) -> None:
        self._cluster = cluster
        self._client = client
        self._store: MemoryStore = cluster.ensemble.connect(cluster.clock)
        self._watches: list[Watch] = []
        self.whole_listings = False

    @property
    def session_id(self) -> str:
        return self._store.session_id

    @property
    def lease_until(self) -> float:
        return self._store.lease_until

    async def get(self, path: str) -> Versioned | None:
        return await self._ask("get", path, lambda: self._store.get(path))

    async def put(
        self, path: str, value: bytes, *, expected_version: int | None = None, ephemeral: bool = False
    ) -> int:
        async def put() -> int:
            version = await self._store.put(
                path, value, expected_version=expected_version, ephemeral=ephemeral
            )
            self._written(path, value)
            return version

        return await self._ask(
            "put", path, put, changes=True, compares=expected_version is not None and not ephemeral
        )

    async def write_all(self, writes: Sequence[Write]) -> list[int | None]:
        async def write_all() -> list[int | None]:
            versions = await self._store.write_all(writes)
            for write in writes:
                if isinstance(write, Put):
                    self._written(write.path, write.value)
                elif write.path.startswith(_DATA_PATH):
                    self._cluster.judge.ledger_deleted(ledger_id_of(write.path))
            return versions

        return await self._ask("write", ", ".join(write.path for write in writes), write_all, changes=True)

    async def create_sequential(self, prefix: str, value: bytes, *, ephemeral: bool = False) -> str:
        return await self._ask(
            "create",
            prefix,
            lambda: self._store.create_sequential(prefix, value, ephemeral=ephemeral),
            changes=True,
        )

    async def delete(self, path: str, *, expected_version: int | None = None) -> None:
        async def delete() -> None:
            await self._store.delete(path, expected_version=expected_version)
            if path.startswith(_DATA_PATH):
                self._cluster.history.told(f"{self._client.name} deletes ledger {ledger_id_of(path)}")
                self._cluster.judge.ledger_deleted(ledger_id_of(path))

        await self._ask("delete", path, delete, changes=True)

    async def delete_recursive(self, path: str) -> None:
        await self._ask("delete all", path, lambda: self._store.delete_recursive(path), changes=True)

    async def children(self, path: str) -> list[str]:
        names = await self._ask("list", path, lambda: self._store.children(path))
        cluster = self._cluster
        partial = cluster.weather.partial_listing
        if (
            partial
            and not self.whole_listings
            and path.startswith(f"{LEDGERS_PATH}/data")
            and cluster.dice.random() < partial
        ):
            cluster.judge.met["listings cut short"] += 1
            return names[: cluster.dice.randint(0, len(names))]
        return names

    async def exists(self, path: str) -> bool:
        return await self._ask("exists", path, lambda: self._store.exists(path))

    def watch(self, prefix: str, listener: Listener) -> Watch:
        cluster = self._cluster

        def late(notification: Notification) -> None:
            self._client.call_later(
                cluster.dice.random() * cluster.weather.stale_watch_s, listener, notification
            )

        return self._store.watch(prefix, late)

    def on_session(self, listener: SessionListener) -> Watch:
        def told(state: SessionState) -> None:
            self._client.call(listener, state)

        return self._store.on_session(told)

    async def close(self) -> None:
        await self._store.close()

    def expire(self) -> None:
        self._store.expire()

    async def end(self) -> None:
        """The session of a process that is gone."""
        await self._store.close()

    def _written(self, path: str, value: bytes) -> None:
        if path.startswith(_DATA_PATH):
            metadata = decode_metadata(ledger_id_of(path), value)
            self._cluster.history.told(
                f"{self._client.name} writes ledger {metadata.ledger_id}: {metadata.state.value}"
                f" {' '.join(f'{each.first_entry}={chr(44).join(each.ensemble)}' for each in metadata.segments)}"
                + (f" last {metadata.last_entry}" if metadata.closed else "")
            )
            self._cluster.judge.ledger_written(metadata, self._client.name)

    async def _ask(
        self,
        what: str,
        path: str,
        operation: Callable[[], Coroutine[Any, Any, T]],
        *,
        changes: bool = False,
        compares: bool = False,
    ) -> T:
        cluster, dice = self._cluster, self._cluster.dice
        weather = cluster.weather
        await asyncio.sleep(dice.random() * 0.004)
        cluster.history.passed(self._client.name, what, path)
        if cluster.store_down or (cluster.cut and (self._client.name, "metadata") in cluster.cut):
            raise StoreUnavailable("simulated: there is no way to the store")
        draw = dice.random()
        if draw < weather.lost_request:
            raise StoreUnavailable("simulated: the request was lost")
        draw -= weather.lost_request
        if changes and draw < weather.late:
            cluster.judge.met["unknown outcomes of compare-and-set"] += compares
            cluster.loop.call_at(
                cluster.loop.now + dice.random(), self._happen, operation, context=cluster.outside
            )
            raise StoreUnavailable("simulated: the request is on its way")
        draw -= weather.late if changes else 0.0
        result = await operation()
        if changes and draw < weather.lost_answer:
            cluster.judge.met["unknown outcomes of compare-and-set"] += compares
            raise StoreUnavailable("simulated: the answer was lost")
        await asyncio.sleep(dice.random() * 0.004)
        return result

    def _happen(self, operation: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        async def late() -> None:
            await asyncio.gather(operation(), return_exceptions=True)

        self._cluster.loop.create_task(late())
