"""What is not known of a bookie is not told as if all were well."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from magnetar.cli.errors import CommandError
from magnetar.cli.operator.bookie import naming, require_away, require_trace
from magnetar.environment.clock import SystemClock
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.provider import MetadataBookieProvider
from magnetar.metadata.memory import MemoryEnsemble
from magnetar.protocol.bookie import AVAILABLE_PATH, COOKIES_PATH, READ_ONLY_WANTED_PATH


@pytest.fixture
async def cluster() -> Any:
    metadata, dice = MemoryEnsemble().connect(), random.Random(1)
    provider = MetadataBookieProvider(metadata, dice=dice)
    ledgers = LedgerClient(metadata, provider, clock=SystemClock(), random=dice)
    yield SimpleNamespace(metadata=metadata, provider=provider, ledgers=ledgers)
    await ledgers.close()
    await provider.close()


async def test_a_store_without_bookies_cannot_say_that_no_ledger_names_one(cluster: Any) -> None:
    with pytest.raises(CommandError, match="another one"):
        await naming(cluster, "b1")
    await cluster.metadata.put(f"{COOKIES_PATH}/b1", b"")
    await cluster.metadata.delete(f"{COOKIES_PATH}/b1")
    assert await naming(cluster, "b1") == 0


async def test_a_bookie_nobody_knows_does_not_stay(cluster: Any) -> None:
    with pytest.raises(CommandError, match="no bookie 'b1'"):
        await require_trace(cluster, "b1")
    await cluster.metadata.put(f"{READ_ONLY_WANTED_PATH}/b1", b"")
    await require_trace(cluster, "b1")


async def test_a_bookie_still_registered_is_not_emptied_and_then_not_forgotten(cluster: Any) -> None:
    await require_away(cluster, "b1")
    await cluster.metadata.put(f"{AVAILABLE_PATH}/b1", b"", ephemeral=True)
    with pytest.raises(CommandError, match="still registered"):
        await require_away(cluster, "b1")
