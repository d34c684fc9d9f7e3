"""Several writes that happen together or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from magnetar.metadata.errors import InvalidBatch, InvalidPath, ValueTooLarge
from magnetar.metadata.paths import check_path, with_ancestors

WRITES_MAX = 32  # etcd takes 128 operations in a transaction, and some writes are several.
BATCH_BYTES_MAX = 1_000_000  # ZooKeeper's limit is on the request, not on the record.


@dataclass(frozen=True, slots=True)
class Put:
    """As `MetadataStore.put`."""

    path: str
    value: bytes
    expected_version: int | None = None
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Delete:
    """As `MetadataStore.delete`."""

    path: str
    expected_version: int | None = None


Write: TypeAlias = Put | Delete


def check_batch(writes: Sequence[Write]) -> None:
    """
    Raises:
        InvalidPath: a path that is none, or the root to be deleted.
        InvalidBatch: too many writes, or two of them at one path or at one below the other: each must mean the same
            in whatever order they are done.
        ValueTooLarge: all values together.
    """
    if len(writes) > WRITES_MAX:
        raise InvalidBatch(f"{len(writes)} writes at once are more than the {WRITES_MAX} a store may take")
    paths = {check_path(write.path) for write in writes}
    if len(paths) < len(writes):
        raise InvalidBatch("two writes of a batch have the same path")
    for write in writes:
        if isinstance(write, Delete) and write.path == "/":
            raise InvalidPath(write.path, "the root cannot be deleted")
        above = paths.intersection(step for step in with_ancestors(write.path) if step != write.path)
        if above:
            raise InvalidBatch(f"{write.path} lies below {above.pop()}, which the same batch writes")
    size = sum(len(write.value) for write in writes if isinstance(write, Put))
    if size > BATCH_BYTES_MAX:
        raise ValueTooLarge(writes[0].path, size, BATCH_BYTES_MAX)
