"""The metadata stores of a role of a cluster: the brokers' and the bookies', which may be one, and whose they are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from magnetar.cli.cluster_identity import ClusterIdentity, read_identity
from magnetar.cli.ending import end_process
from magnetar.cli.errors import CannotServe
from magnetar.environment.logs import get_logger
from magnetar.metadata.opening import open_store
from magnetar.metadata.store import MetadataStore, SessionState

if TYPE_CHECKING:
    from magnetar.cli.settings.model import PlatformSettings

EXIT_SESSION_EXPIRED = 75  # EX_TEMPFAIL: start it again.

_log = get_logger("magnetar.cli")


@dataclass(frozen=True, slots=True)
class Stores:
    """Open stores of one cluster."""

    brokers: MetadataStore
    """Topics, policies, functions, who serves what."""
    bookies: MetadataStore
    """Ledgers, bookies, what is under-replicated."""
    identity: ClusterIdentity


@asynccontextmanager
async def cluster_stores(settings: PlatformSettings) -> AsyncIterator[Stores]:
    """The stores, for as long as the role runs.

    Raises:
        CannotServe: nobody has made this cluster, or its name is not the one in the settings.
        MetadataError: a store cannot be opened.
    """
    async with AsyncExitStack() as parts:
        brokers = await open_store(settings.metadata_store)
        parts.push_async_callback(brokers.close)
        bookies = brokers
        if settings.bookie_metadata_store not in ("", settings.metadata_store):
            bookies = await open_store(settings.bookie_metadata_store)
            parts.push_async_callback(bookies.close)
        identity = await _identity(brokers, settings.metadata_store, settings)
        if bookies is not brokers:
            found = await _identity(bookies, settings.bookie_metadata_store, settings)
            if found.instance_id != identity.instance_id:
                raise CannotServe(
                    f"--metadata-store is of cluster {identity.cluster!r} ({identity.instance_id}), and "
                    f"--bookie-metadata-store of {found.cluster!r} ({found.instance_id}): they must be made together"
                )
        for store in {id(brokers): brokers, id(bookies): bookies}.values():
            if settings.session_expired_policy == "shutdown":
                parts.callback(store.on_session(_end_when_expired).cancel)
        yield Stores(brokers, bookies, identity)


async def _identity(store: MetadataStore, url: str, settings: PlatformSettings) -> ClusterIdentity:
    found = await read_identity(store)
    if found is None:
        raise CannotServe(
            f"the metadata store {url} belongs to no cluster yet. Make one, once: "
            f"magnetar metadata init --metadata-store {url} --cluster NAME"
        )
    if settings.cluster not in (DEFAULT_CLUSTER, found.cluster):
        raise CannotServe(
            f"the metadata store {url} belongs to cluster {found.cluster!r}, this process is set up for "
            f"{settings.cluster!r}: correct --metadata-store, or leave --cluster out"
        )
    return found


DEFAULT_CLUSTER = "standalone"
"""What `cluster` says where nobody has set it: then it is the store that knows."""


def _end_when_expired(state: SessionState) -> None:
    if state is SessionState.EXPIRED:
        _log.error("session.expired", policy="shutdown")
        end_process(EXIT_SESSION_EXPIRED)
