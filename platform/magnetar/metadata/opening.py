"""Opening a store by its address. Only the library of the store that is asked for is loaded."""

from __future__ import annotations

from pathlib import Path

from magnetar.metadata.errors import StoreRefused
from magnetar.metadata.store import MetadataStore


async def open_store(url: str) -> MetadataStore:
    """Open the store that `url` names.

    `memory:` (a new one), `memory:NAME` (shared within this process), `rocksdb:/path`,
    `zk:host:port,host:port/chroot`, `etcd:host:port,host:port/chroot`.

    Raises:
        StoreRefused: a store that cannot be opened, a library that is missing, or an address that is none.
        StoreUnavailable: a ZooKeeper or an etcd that does not answer.
    """
    kind, colon, address = url.partition(":")
    if kind == "memory" and colon:
        from magnetar.metadata.memory import open_memory

        return open_memory(address)
    if kind == "rocksdb" and address:
        from magnetar.metadata.rocksdb import RocksDBStore

        return await RocksDBStore.open(Path(address))
    if kind in ("zk", "zookeeper") and address:
        try:
            from magnetar.metadata.zookeeper import ZooKeeperStore
        except ModuleNotFoundError as error:
            if error.name != "kazoo":
                raise
            raise StoreRefused(
                f"{url!r} needs the library kazoo, which is not installed: pip install 'magnetar[zookeeper]'"
            ) from error

        return await ZooKeeperStore.open(address.removeprefix("//"))
    if kind == "etcd" and address.removeprefix("//"):
        from magnetar.metadata.etcd import EtcdStore

        return await EtcdStore.open(address.removeprefix("//"))
    raise StoreRefused(
        f"cannot tell what metadata store {url!r} is; write rocksdb:/path/to/directory, zk:host:2181 or etcd:host:2379"
    )
