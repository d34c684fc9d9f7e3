"""Which cluster a metadata store belongs to: written once by `magnetar metadata init`, read by every role."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass

from magnetar.cli.errors import CannotServe, CommandError
from magnetar.metadata.errors import AlreadyExists
from magnetar.metadata.store import MUST_NOT_EXIST, MetadataStore

PATH = "/magnetar/cluster"
"""JSON: {"version": 1, "cluster": "c1", "instance_id": "1f2e...", "created_ms": 0}. `docs/formats/cluster.md`."""
VERSION = 1
_NAME_MAX = 128


@dataclass(frozen=True, slots=True)
class ClusterIdentity:
    """A cluster. Two of the same name are told apart by `instance_id`."""

    cluster: str
    instance_id: str
    created_ms: int


async def read_identity(store: MetadataStore) -> ClusterIdentity | None:
    """None where no cluster was made yet.

    Raises:
        CannotServe: of a newer format, or unreadable.
    """
    record = await store.get(PATH)
    if record is None:
        return None
    try:
        fields = json.loads(record.value)
        version = fields["version"]
        identity = ClusterIdentity(
            str(fields["cluster"]), str(fields["instance_id"]), int(fields["created_ms"])
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CannotServe(f"{PATH} in the metadata store is unreadable: {error}") from error
    if version != VERSION:
        raise CannotServe(
            f"the metadata store has format {version}, this version of Magnetar knows {VERSION}: "
            "start the newer version"
        )
    return identity


async def make_identity(
    store: MetadataStore, cluster: str, now_ms: int, *, instance_id: str = ""
) -> tuple[ClusterIdentity, bool]:
    """Make the store this cluster's, if it is nobody's. Returns who it belongs to, and whether that is new.

    Raises:
        CommandError: the name is none, or the store is another cluster's.
    """
    check_name(cluster)
    made = ClusterIdentity(cluster, instance_id or uuid.uuid4().hex, now_ms)
    fields = {
        "version": VERSION,
        "cluster": made.cluster,
        "instance_id": made.instance_id,
        "created_ms": made.created_ms,
    }
    try:
        await store.put(PATH, json.dumps(fields).encode(), expected_version=MUST_NOT_EXIST)
    except AlreadyExists:
        found = await read_identity(store)
        if found is None or found.cluster != cluster or (instance_id and found.instance_id != instance_id):
            owner = "another cluster" if found is None else f"cluster {found.cluster!r} ({found.instance_id})"
            raise CommandError(
                f"this metadata store belongs to {owner} already; use another chroot, as in zk:HOST:PORT/{cluster}"
            ) from None
        return found, False
    return made, True


def check_name(cluster: str) -> None:
    """Raises CommandError."""
    if (
        not cluster
        or len(cluster) > _NAME_MAX
        or not all(letter.isalnum() or letter in "-_.=:" for letter in cluster)
    ):
        raise CommandError(
            f"{cluster!r} is no name for a cluster: letters, digits, and -_.=: up to {_NAME_MAX} characters"
        )
