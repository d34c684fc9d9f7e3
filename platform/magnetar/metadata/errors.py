"""MetadataError: all that can go wrong with the metadata store.

BadVersion(path)         someone changed the record in between: read it again, decide again
  AlreadyExists(path)      it was to be created, and is there
NotFound(path)           there is nothing to delete
NotEmpty(path)           it has children: delete those first
InvalidPath(path)        not a path, or below an ephemeral record: a mistake of the caller's
InvalidBatch             writes that no store could do as one: a mistake of the caller's
ValueTooLarge(path)      no store takes so much in one record
StoreUnavailable         no answer: the operation may or may not have happened. Read before trying again
  SessionExpired           moreover, our ephemerals are gone
StoreClosed              asked after close()
StoreRefused             the store cannot be opened: in use, of a newer version, a bad address
"""

from __future__ import annotations

UNKNOWN_VERSION = -2


class MetadataError(Exception):
    """Root of this room's errors."""


class BadVersion(MetadataError):
    """The record is not at the version the caller expected.

    `actual` is None where there is no record, and UNKNOWN_VERSION where the store does not say.
    """

    def __init__(self, path: str, expected: int | None, actual: int | None) -> None:
        found = "it does not exist" if actual is None else f"it is at version {actual}"
        if actual == UNKNOWN_VERSION:
            found = "it has changed"
        super().__init__(f"{path} was expected at version {expected}, but {found}")
        self.path = path
        self.expected = expected
        self.actual = actual


class AlreadyExists(BadVersion):
    """The record was to be created, and is there already."""

    def __init__(self, path: str) -> None:
        MetadataError.__init__(self, f"{path} exists already")
        self.path = path
        self.expected = -1
        self.actual = UNKNOWN_VERSION


class NotFound(MetadataError):
    """There is no such record."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} does not exist")
        self.path = path


class NotEmpty(MetadataError):
    """A record with children cannot be deleted."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} has children; delete them first")
        self.path = path


class InvalidPath(MetadataError, ValueError):
    """The text cannot name a record."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"invalid metadata path {path!r}: {reason}")
        self.path = path


class InvalidBatch(MetadataError, ValueError):
    """These writes cannot be asked for at once."""


class ValueTooLarge(MetadataError, ValueError):
    """Metadata records are small by design; bulk belongs into a ledger."""

    def __init__(self, path: str, size: int, limit: int) -> None:
        super().__init__(f"{path}: {size} bytes are more than the {limit} a metadata record may hold")
        self.path = path
        self.size = size


class StoreUnavailable(MetadataError):
    """The store gave no answer. What was asked may have happened or not: read before asking again."""


class SessionExpired(StoreUnavailable):
    """The store has given up on this process: its ephemerals are gone, others may own what it owned."""


class StoreClosed(MetadataError):
    """Asked after `close()`."""

    def __init__(self) -> None:
        super().__init__("the metadata store has been closed")


class StoreRefused(MetadataError):
    """The store cannot be opened; the message says what to do."""
