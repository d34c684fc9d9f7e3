"""Which bookie stands in which rack and belongs to which group, as an administrator has said it.

One record of the metadata store, `/bookies`: {"version": 1, "groups": {group: {bookie: {"rack": …}}}}.
A bookie stands in one group. Described in `docs/formats/ledger-metadata.md`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from magnetar.environment.logs import get_logger
from magnetar.ledger.errors import MetadataCorrupt, MetadataUnavailable
from magnetar.ledger.placement import RackPlace
from magnetar.metadata.errors import BadVersion, MetadataError
from magnetar.metadata.store import MUST_NOT_EXIST, MetadataStore, Notification, Watch

log = get_logger("magnetar.ledger")

RACKS_PATH = "/bookies"
DEFAULT_GROUP = "default"
_FORMAT_VERSION = 1


class BookieRacks:
    """The record, read when it has changed."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._known: dict[str, RackPlace] = {}
        self._stale = True
        self._changes = 0
        self._watch: Watch | None = None

    async def places(self) -> Mapping[str, RackPlace]:
        """What is said of each bookie; the last that was read, where the store does not answer or makes no sense."""
        if self._watch is None:
            self._watch = self._store.watch(RACKS_PATH, self._changed)
        if self._stale:
            changes = self._changes
            try:
                record = await self._store.get(RACKS_PATH)
                self._known = {} if record is None else _decode(record.value)
            except (MetadataError, MetadataCorrupt) as error:
                log.warning("racks.not_read", reason=str(error) or type(error).__name__)
            else:
                self._stale = changes != self._changes
        return self._known

    async def place(self, bookie: str, rack: str, group: str = DEFAULT_GROUP) -> None:
        """Say where a bookie stands.

        Raises:
            MetadataUnavailable, MetadataCorrupt
        """
        await self._change(lambda said: {**said, bookie: RackPlace(group, rack)})

    async def remove(self, bookie: str) -> None:
        """Say nothing of a bookie any more."""
        await self._change(lambda said: {each: place for each, place in said.items() if each != bookie})

    def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        self._stale = True

    async def _change(self, change: Callable[[Mapping[str, RackPlace]], Mapping[str, RackPlace]]) -> None:
        try:
            while True:
                record = await self._store.get(RACKS_PATH)
                said = {} if record is None else _decode(record.value)
                expected = MUST_NOT_EXIST if record is None else record.version
                try:
                    await self._store.put(RACKS_PATH, _encode(change(said)), expected_version=expected)
                except BadVersion:
                    continue
                return
        except MetadataError as error:
            raise MetadataUnavailable(
                "changing the racks of bookies", str(error) or type(error).__name__
            ) from error

    def _changed(self, notification: Notification) -> None:
        self._changes += 1
        self._stale = True


def _encode(places: Mapping[str, RackPlace]) -> bytes:
    groups: dict[str, dict[str, dict[str, str]]] = {}
    for bookie, place in sorted(places.items()):
        groups.setdefault(place.group, {})[bookie] = {"rack": place.rack}
    return json.dumps({"version": _FORMAT_VERSION, "groups": groups}, separators=(",", ":")).encode()


def _decode(value: bytes) -> dict[str, RackPlace]:
    try:
        said = json.loads(value)
        if said["version"] != _FORMAT_VERSION:
            raise ValueError(f"format version {said['version']}; this software knows {_FORMAT_VERSION}")
        return {
            str(bookie): RackPlace(str(group), str(place.get("rack", "")))
            for group, bookies in said["groups"].items()
            for bookie, place in bookies.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MetadataCorrupt("the racks of bookies", str(error)) from error
