"""Reads every entry from each replica that metadata names, and compares them.

On purpose by nothing but metadata, striping rule and single reads: what is checked is the ledger client itself too.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from magnetar.environment.clock import SystemClock
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.metadata import LedgerMetadata
from magnetar.ledger.provider import MetadataBookieProvider
from magnetar.metadata.opening import open_store
from magnetar.naming import TopicName
from magnetar.protocol.bookie import BookieStatus
from magnetar.protocol.ledger_entry import EntryCorrupt, LedgerEntry, decode_entry

_AT_A_TIME = 64
_TRIES = 3


@dataclass(slots=True)
class ReplicaReport:
    """What was read."""

    ledgers: int = 0
    entries: int = 0
    copies: int = 0
    wrong: list[str] = field(default_factory=list)
    """What is not as it should be: a line for each ledger, bookie and reason, with the entries concerned."""


@asynccontextmanager
async def ledger_client(metadata_store: str) -> AsyncIterator[tuple[LedgerClient, MetadataBookieProvider]]:
    """A client of a cluster's ledgers, for as long as it is needed."""
    store = await open_store(metadata_store)
    dice = random.Random()
    provider = MetadataBookieProvider(store, dice=dice)
    client = LedgerClient(store, provider, clock=SystemClock(), random=dice)
    try:
        yield client, provider
    finally:
        await client.close()
        await provider.close()
        await store.close()


async def compare_replicas(metadata_store: str) -> ReplicaReport:
    """Every entry of every ledger of the cluster. Nobody may write meanwhile: what is open is recovered first."""
    report = ReplicaReport()
    async with ledger_client(metadata_store) as (client, provider):
        for ledger_id in await client.list():
            try:
                metadata = (await client.open(ledger_id, recover=True)).metadata
            except LedgerError as error:
                report.wrong.append(f"ledger {ledger_id} cannot be closed: {error}")
                continue
            report.ledgers += 1
            wrong: dict[tuple[str, str], list[int]] = {}
            for first in range(0, metadata.last_entry + 1, _AT_A_TIME):
                ids = range(first, min(first + _AT_A_TIME, metadata.last_entry + 1))
                await asyncio.gather(*(_compare(metadata, each, provider, report, wrong) for each in ids))
            quorums = f"{metadata.ensemble_size}/{metadata.write_quorum}/{metadata.ack_quorum}"
            for (bookie, reason), entries in wrong.items():
                report.wrong.append(
                    f"ledger {ledger_id} ({quorums}) on {bookie}: {reason}: {len(entries)} entries of"
                    f" {metadata.last_entry + 1}, {min(entries)} to {max(entries)}; {metadata.segments}"
                )
    return report


async def _compare(
    metadata: LedgerMetadata,
    entry_id: int,
    provider: MetadataBookieProvider,
    report: ReplicaReport,
    wrong: dict[tuple[str, str], list[int]],
) -> None:
    report.entries += 1
    found: dict[str, LedgerEntry] = {}
    for bookie in metadata.fragment_of(entry_id).write_set(entry_id):
        copy = await _read(metadata.ledger_id, entry_id, bookie, provider)
        if isinstance(copy, str):
            wrong.setdefault((bookie, copy), []).append(entry_id)
        else:
            report.copies += 1
            found[bookie] = copy
    # The header's LAC is what was confirmed when the copy was made: recovery and replication make later ones.
    contents = {(bytes(copy.payload), copy.length) for copy in found.values()}
    if len(contents) > 1:
        wrong.setdefault((" ".join(sorted(found)), "copies differ"), []).append(entry_id)


async def _read(
    ledger_id: int, entry_id: int, bookie: str, provider: MetadataBookieProvider
) -> LedgerEntry | str:
    """The copy, or why there is none."""
    status = BookieStatus.UNREACHABLE
    for attempt in range(_TRIES):
        answer = await provider.connection(bookie).read_entry(ledger_id, entry_id)
        status = answer.status
        if status is BookieStatus.OK:
            try:
                return decode_entry(answer.entry, expect_ledger=ledger_id, expect_entry=entry_id)
            except EntryCorrupt as error:
                return str(error)
        if not status.is_unknown:
            break
        await asyncio.sleep(0.5 * (attempt + 1))
    return status.name


async def ledgers_of_topic(metadata_store: str, topic: str) -> list[LedgerMetadata]:
    """Of the topic's log, its subscriptions' left out, oldest first."""
    log_name = TopicName.parse(topic).managed_ledger_name.encode()
    async with ledger_client(metadata_store) as (client, _):
        found = [await client.metadata_of(ledger_id) for ledger_id in await client.list()]
    return [
        each
        for each in found
        if each.custom.get("managed-ledger") == log_name and "cursor" not in each.custom
    ]
