"""The writer of a ledger, in a process that can be killed: `python writer_process.py URL E QW QA ENTRIES`.

Prints the ledger's id when all entries are acknowledged; then it waits, and never closes the ledger.
"""

from __future__ import annotations

import asyncio
import random
import sys

from magnetar.environment.clock import SystemClock
from magnetar.environment.logs import configure
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.provider import MetadataBookieProvider
from magnetar.metadata.opening import open_store
from tests.integration.autorecovery.conftest import append


async def write(url: str, ensemble: int, quorum: int, acks: int, entries: int) -> None:
    store = await open_store(url)
    client = LedgerClient(store, MetadataBookieProvider(store), clock=SystemClock(), random=random.Random())
    writer = await client.create(ensemble, quorum, acks)
    await append(writer, entries)
    sys.stdout.write(f"{writer.ledger_id}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    configure("WARNING")
    asyncio.run(write(sys.argv[1], *map(int, sys.argv[2:6])))
