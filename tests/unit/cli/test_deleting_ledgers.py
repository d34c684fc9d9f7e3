"""`magnetar ledger delete` refuses whatever a topic counts on, or may count on in a moment."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from magnetar.cli.cluster_identity import ClusterIdentity
from magnetar.cli.operator.ledger import reason_to_keep
from magnetar.ledger.metadata import LedgerMetadata, Segment
from magnetar.managed_ledger.records import ListedLedger, LogRecord, encode_log, log_path
from magnetar.metadata.memory import MemoryEnsemble
from magnetar.policies.paths import cluster as cluster_path

LOG = "public/default/persistent/t"


def ledger(ledger_id: int) -> LedgerMetadata:
    segments = (Segment(0, ("b1",)),)
    return LedgerMetadata(ledger_id, 1, 1, 1, segments, "", 0, custom={"managed-ledger": LOG.encode()})


@pytest.fixture
async def cluster() -> Any:
    metadata = MemoryEnsemble().connect()
    await metadata.put(cluster_path("c"), b"{}")
    record = LogRecord(ledgers=(ListedLedger(3, 1, 1, 1),))
    await metadata.put(log_path(LOG), encode_log(record, ""))
    return SimpleNamespace(metadata=metadata, identity=ClusterIdentity("c", "i", 0))


async def test_what_a_topic_names_is_kept_and_what_it_does_not_goes(cluster: Any) -> None:
    assert f"topic {LOG}" in (await reason_to_keep(cluster, ledger(3).closed_at(0, 1)) or "")
    assert await reason_to_keep(cluster, ledger(4).closed_at(0, 1)) is None


async def test_a_ledger_made_ahead_is_not_named_yet_and_kept(cluster: Any) -> None:
    assert "magnetar ledger recover 5" in (await reason_to_keep(cluster, ledger(5)) or "")


async def test_where_only_ledgers_are_recorded_nobody_knows_who_counts_on_them(cluster: Any) -> None:
    cluster.metadata = MemoryEnsemble().connect()
    assert "another metadata store" in (await reason_to_keep(cluster, ledger(3).closed_at(0, 1)) or "")
