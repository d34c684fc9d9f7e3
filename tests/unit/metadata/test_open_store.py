"""Opening a store by its address: what cannot be opened is said so, with what to do."""

from __future__ import annotations

import sys

import pytest

from magnetar.metadata.errors import StoreRefused
from magnetar.metadata.opening import open_store


async def test_zookeeper_without_its_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "magnetar.metadata.zookeeper", raising=False)
    monkeypatch.setitem(sys.modules, "kazoo", None)
    with pytest.raises(StoreRefused, match=r"pip install 'magnetar\[zookeeper\]'"):
        await open_store("zk:127.0.0.1:1")


@pytest.mark.parametrize("url", ["", "memory", "rocksdb:", "etcd:", "etcd://", "zk:"])
async def test_what_is_no_address_is_refused_with_examples(url: str) -> None:
    with pytest.raises(StoreRefused, match="rocksdb:/path/to/directory, zk:host:2181 or etcd:host:2379"):
        await open_store(url)
