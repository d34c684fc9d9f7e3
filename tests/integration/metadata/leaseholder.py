"""A process of its own that holds a lock in ZooKeeper and says, each time its loop turns, whether its lease is sure.

Run as `leaseholder.py STORE-URL`; writes `held SESSION`, then, whenever it wakes after a gap longer than its lease,
`woke sure` or `woke unsure` (in the very step it wakes in, before any other callback), and `lost` when it is told.
"""

from __future__ import annotations

import asyncio
import sys
import time

from magnetar.metadata.locks import ResourceLock
from magnetar.metadata.opening import open_store
from magnetar.metadata.store import MetadataStore

GAP_S = 1.5


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class Holder:
    """Looks at the lease at every turn of the loop."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._looked_at = time.monotonic()
        self._held = False

    def look(self) -> None:
        time.sleep(0.005)  # The process is stopped here, most probably: in the middle of a step.
        now = time.monotonic()
        sure = self._store.lease_until > now
        if sure and not self._held:
            self._held = True
            say(f"held {self._store.session_id}")
        if self._held and now - self._looked_at > GAP_S:
            say("woke sure" if sure else "woke unsure")
        self._looked_at = now
        asyncio.get_running_loop().call_later(0.005, self.look)


async def main(url: str) -> None:
    store = await open_store(url)
    await ResourceLock.acquire(store, "/lock", b"holder", on_lost=lambda: say("lost"))
    Holder(store).look()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
