"""A metadata store whose answers come late or never, and whose writes may have happened all the same."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from magnetar.metadata.batch import Put, Write
from magnetar.metadata.errors import StoreUnavailable
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.store import Listener, SessionListener, Versioned, Watch

T = TypeVar("T")
Operation = Callable[[], Coroutine[Any, Any, T]]


@dataclass(frozen=True, slots=True)
class MetadataFaults:
    """How likely each thing is for one operation."""

    lost_request: float = 0.0
    """No answer, and nothing has happened."""
    lost_answer: float = 0.0
    """No answer, and it has happened."""
    late: float = 0.0
    """No answer, and it happens after a while, when the client has long given up on it."""
    delay_s: float = 0.0


class FaultyStore:
    """A `MetadataStore`: one client's way to a shared one."""

    def __init__(
        self,
        store: MemoryStore,
        dice: random.Random,
        faults: MetadataFaults,
        on_put: Callable[[str, bytes], None] | None = None,
    ) -> None:
        self._store = store
        self._dice = dice
        self._faults = faults
        self._on_put = on_put
        self._late: list[asyncio.Task[None]] = []
        self.cut = False
        """Nothing passes any more."""

    @property
    def session_id(self) -> str:
        return self._store.session_id

    @property
    def lease_until(self) -> float:
        return self._store.lease_until

    async def get(self, path: str) -> Versioned | None:
        return await self._ask(lambda: self._store.get(path))

    async def put(
        self, path: str, value: bytes, *, expected_version: int | None = None, ephemeral: bool = False
    ) -> int:
        return await self._ask(lambda: self._put(path, value, expected_version, ephemeral), changes=True)

    async def _put(self, path: str, value: bytes, expected_version: int | None, ephemeral: bool) -> int:
        version = await self._store.put(path, value, expected_version=expected_version, ephemeral=ephemeral)
        if self._on_put is not None:
            self._on_put(path, value)
        return version

    async def write_all(self, writes: Sequence[Write]) -> list[int | None]:
        return await self._ask(lambda: self._write_all(writes), changes=True)

    async def _write_all(self, writes: Sequence[Write]) -> list[int | None]:
        versions = await self._store.write_all(writes)
        for write in writes:
            if self._on_put is not None and isinstance(write, Put):
                self._on_put(write.path, write.value)
        return versions

    async def create_sequential(self, prefix: str, value: bytes, *, ephemeral: bool = False) -> str:
        return await self._ask(
            lambda: self._store.create_sequential(prefix, value, ephemeral=ephemeral), changes=True
        )

    async def delete(self, path: str, *, expected_version: int | None = None) -> None:
        await self._ask(lambda: self._store.delete(path, expected_version=expected_version), changes=True)

    async def delete_recursive(self, path: str) -> None:
        await self._ask(lambda: self._store.delete_recursive(path), changes=True)

    async def children(self, path: str) -> list[str]:
        return await self._ask(lambda: self._store.children(path))

    async def exists(self, path: str) -> bool:
        return await self._ask(lambda: self._store.exists(path))

    def watch(self, prefix: str, listener: Listener) -> Watch:
        return self._store.watch(prefix, listener)

    def on_session(self, listener: SessionListener) -> Watch:
        return self._store.on_session(listener)

    async def close(self) -> None:
        await self._store.close()

    async def _ask(self, operation: Operation[T], *, changes: bool = False) -> T:
        dice, faults = self._dice, self._faults
        await asyncio.sleep(dice.random() * faults.delay_s)
        draw = dice.random()
        if self.cut:
            raise StoreUnavailable("simulated: there is no way to the store")
        if draw < faults.lost_request:
            raise StoreUnavailable("simulated: the request was lost")
        draw -= faults.lost_request
        if changes and draw < faults.late:
            self._late.append(asyncio.get_running_loop().create_task(self._happen_late(operation)))
            raise StoreUnavailable("simulated: the request is on its way")
        draw -= faults.late if changes else 0.0
        result = await operation()
        if changes and draw < faults.lost_answer:
            raise StoreUnavailable("simulated: the answer was lost")
        await asyncio.sleep(dice.random() * faults.delay_s)
        return result

    async def _happen_late(self, operation: Operation[Any]) -> None:
        await asyncio.sleep(self._dice.random())
        await asyncio.gather(operation(), return_exceptions=True)
