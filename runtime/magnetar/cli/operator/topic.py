"""`magnetar topic internal-stats TOPIC --metadata-store ...`: what is recorded of a topic, with no broker's help."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from magnetar.cli.errors import CommandError
from magnetar.cli.operator.store import OpenCluster, read_log, show_json, show_table, with_cluster
from magnetar.ledger.errors import NoSuchLedger
from magnetar.managed_ledger.records import cursor_path, decode_cursor, decode_name, log_path
from magnetar.naming import NamingError, TopicName

if TYPE_CHECKING:
    from magnetar.ledger.metadata import LedgerMetadata


def show_internal_stats(topic: str, metadata_store: str, json: bool) -> None:
    """Ledgers, where their copies are, and subscriptions. Of a ledger that is written to, not yet its entries."""
    try:
        name = TopicName.parse(topic)
    except NamingError as error:
        raise CommandError(str(error)) from error
    if not name.persistent:
        raise CommandError(f"{name} is not persistent: nothing is stored of it")
    found = with_cluster(metadata_store, lambda cluster: _read(cluster, name))
    if json:
        show_json(found)
        return
    print(f"topic {name}" + (", terminated" if found["terminated"] else ""))
    rows = [
        (
            each["ledgerId"],
            each["state"],
            each["entries"],
            each["size"],
            "; ".join(f"{first}: {' '.join(ensemble)}" for first, ensemble in each["ensembles"].items()),
        )
        for each in found["ledgers"]
    ]
    show_table(("LEDGER", "STATE", "ENTRIES", "BYTES", "BOOKIES"), rows, empty="it has no ledgers")
    if found["cursors"]:
        print()
        subscriptions = [
            (cursor, each["markDeletePosition"], each["cursorsLedgerId"])
            for cursor, each in found["cursors"].items()
        ]
        show_table(("SUBSCRIPTION", "ACKNOWLEDGED UP TO, AT LEAST", "LEDGER"), subscriptions, empty="")


async def _read(cluster: OpenCluster, topic: TopicName) -> dict[str, Any]:
    name = topic.managed_ledger_name
    log = await read_log(cluster.metadata, name)
    if log is None:
        raise CommandError(
            f"there is no topic {topic}"
            + (
                ""
                if topic.partition >= 0
                else "; of a partitioned topic, name a partition: TOPIC-partition-0"
            )
        )
    cursors: dict[str, Any] = {}
    for part in await cluster.metadata.children(log_path(name)):
        cursor = decode_name(part)
        stored = await cluster.metadata.get(cursor_path(name, cursor))
        if stored is None:
            continue
        state = decode_cursor(cursor, stored.value)
        ledger = await _ledger(cluster, state.ledger_id) if state.ledger_id >= 0 else None
        cursors[cursor] = {
            "markDeletePosition": f"{state.snapshot.mark_delete.ledger_id}:{state.snapshot.mark_delete.entry_id}",
            "cursorsLedgerId": state.ledger_id,
            "ensembles": {} if ledger is None else _ensembles(ledger),
            "properties": dict(state.properties),
        }
    ledgers = await asyncio.gather(*(_ledger(cluster, each.ledger_id) for each in log.ledgers))
    terminated = log.terminated
    return {
        "topic": str(topic),
        "terminated": None if terminated is None else f"{terminated.ledger_id}:{terminated.entry_id}",
        "ledgers": [
            _row(each.ledger_id, each.entries, each.size, ledger)
            for each, ledger in zip(log.ledgers, ledgers, strict=True)
        ],
        "cursors": cursors,
    }


def _row(ledger_id: int, entries: int, size: int, ledger: LedgerMetadata | None) -> dict[str, Any]:
    """A ledger that is listed and has no metadata is lost: somebody has deleted it."""
    if ledger is None:
        return {"ledgerId": ledger_id, "state": "LOST", "entries": entries, "size": size, "ensembles": {}}
    return {
        "ledgerId": ledger_id,
        "state": ledger.state.name,
        "entries": ledger.last_entry + 1 if ledger.closed else entries,
        "size": ledger.length if ledger.closed else size,
        "ensembleSize": ledger.ensemble_size,
        "writeQuorumSize": ledger.write_quorum,
        "ackQuorumSize": ledger.ack_quorum,
        "ensembles": _ensembles(ledger),
    }


def _ensembles(ledger: LedgerMetadata) -> dict[str, list[str]]:
    return {str(each.first_entry): list(each.ensemble) for each in ledger.segments}


async def _ledger(cluster: OpenCluster, ledger_id: int) -> LedgerMetadata | None:
    try:
        return await cluster.ledgers.metadata_of(ledger_id)
    except NoSuchLedger:
        return None
