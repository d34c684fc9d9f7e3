"""Who waits for the LAC of a ledger to rise: the tail readers' long-polls."""

from __future__ import annotations

import asyncio


class LacWaits:
    """Belongs to the loop. While nobody waits it is false, and costs an add no more than finding that out."""

    def __init__(self, waits_max: int) -> None:
        self._waits_max = waits_max
        self._waiting: dict[int, dict[asyncio.Future[None], int]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        return self._count >= self._waits_max

    async def wait(self, ledger_id: int, above: int, timeout_s: float) -> None:
        """Returns when the LAC is higher than `above`, when the ledger is woken, or at the time-out."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(ledger_id, {})[woken] = above
        self._count += 1
        try:
            await asyncio.wait([woken], timeout=timeout_s)
        finally:
            self._count -= 1
            waiting = self._waiting.get(ledger_id)
            if waiting is not None:
                waiting.pop(woken, None)
                if not waiting:
                    del self._waiting[ledger_id]

    def risen(self, ledger_id: int, lac: int) -> None:
        for woken, above in self._waiting.get(ledger_id, {}).items():
            if lac > above and not woken.done():
                woken.set_result(None)

    def wake(self, ledger_id: int) -> None:
        """Its LAC will not rise any more, or not here."""
        for woken in self._waiting.get(ledger_id, {}):
            if not woken.done():
                woken.set_result(None)

    def wake_all(self) -> None:
        for ledger_id in self._waiting:
            self.wake(ledger_id)
