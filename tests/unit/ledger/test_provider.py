"""Where bookies are, as the metadata store tells it."""

from __future__ import annotations

import pytest

from magnetar.ledger.errors import MetadataUnavailable
from magnetar.ledger.provider import MetadataBookieProvider
from magnetar.metadata.memory import MemoryEnsemble
from magnetar.protocol.bookie import AVAILABLE_PATH, COOKIES_PATH, BookieAddress


async def test_all_that_are_registered_can_be_read_and_all_with_a_cookie_are_known() -> None:
    store = MemoryEnsemble().connect()
    for bookie, read_only in (("a", False), ("b", True)):
        address = BookieAddress("10.0.0.1:3181", "1", read_only, rack="/north/one")
        await store.put(f"{AVAILABLE_PATH}/{bookie}", address.encode())
    for bookie in "abc":
        await store.put(f"{COOKIES_PATH}/{bookie}", b"{}")
    provider = MetadataBookieProvider(store)
    assert set(await provider.writable()) == {"a"}
    readable = await provider.readable()
    assert set(readable) == {"a", "b"}
    assert (readable["b"].failure_domain, readable["b"].rack) == ("10.0.0.1", "/north/one")
    assert await provider.known() == {"a", "b", "c"}
    await provider.close()


async def test_a_store_that_does_not_answer_makes_no_bookie_look_gone() -> None:
    store = MemoryEnsemble().connect()
    await store.put(f"{AVAILABLE_PATH}/a", BookieAddress("10.0.0.1:3181", "1").encode())
    provider = MetadataBookieProvider(store)
    assert set(await provider.readable()) == {"a"}
    await store.close()
    assert set(await provider.readable()) == {"a"}, "what was known is used"
    with pytest.raises(MetadataUnavailable, match="listing cookies"):
        await provider.known()
    await provider.close()
