"""What is known of a ledger beside its entries, as a value, and its stored form (version 1).

    OPEN -> IN_RECOVERY -> CLOSED, or OPEN -> CLOSED, never back

The stored form is JSON; described in `docs/formats/ledger-metadata.md`.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from magnetar.ledger.errors import MetadataCorrupt
from magnetar.ledger.fragment import Fragment, replace_slots

FORMAT_VERSION = 1
LEDGERS_PATH = "/ledgers"
_DIGITS = 19


class LedgerState(Enum):
    OPEN = "open"
    IN_RECOVERY = "in_recovery"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Segment:
    """From `first_entry` on, up to the next segment, entries are on `ensemble`."""

    first_entry: int
    ensemble: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """One ledger. The sizes never change; segments are only added, or replaced by better ones."""

    ledger_id: int
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    segments: tuple[Segment, ...]
    token: str
    """Drawn at random by whoever created it: tells one's own create, repeated, from another's."""
    created_ms: int
    state: LedgerState = LedgerState.OPEN
    last_entry: int = -1
    """Of a closed ledger; -1 if it is empty."""
    length: int = 0
    """Of a closed ledger: payload bytes of all its entries."""
    custom: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def closed(self) -> bool:
        return self.state is LedgerState.CLOSED

    @property
    def last_fragment(self) -> Fragment:
        return self._fragment(self.segments[-1])

    def fragment_of(self, entry_id: int) -> Fragment:
        """Where `entry_id` is, or would be."""
        at = bisect_right(self.segments, entry_id, key=lambda segment: segment.first_entry)
        return self._fragment(self.segments[max(0, at - 1)])

    def fragment_end(self, entry_id: int) -> int | None:
        """The last entry id of the segment that holds `entry_id`; None in the last segment."""
        at = bisect_right(self.segments, entry_id, key=lambda segment: segment.first_entry)
        return self.segments[at].first_entry - 1 if at < len(self.segments) else None

    def with_ensemble(self, first_entry: int, ensemble: tuple[str, ...]) -> LedgerMetadata:
        """With `ensemble` from `first_entry` on, which must lie in the last segment.

        Where the last segment begins there too, nothing of it was ever confirmed: it is replaced.
        """
        last = self.segments[-1]
        if first_entry < last.first_entry:
            raise ValueError(f"a segment at {first_entry} would begin before the last, {last.first_entry}")
        kept = self.segments[:-1] if first_entry == last.first_entry else self.segments
        return replace(self, segments=(*kept, Segment(first_entry, ensemble)))

    def with_replaced(self, first_entry: int, bookies: Mapping[int, str]) -> LedgerMetadata | None:
        """With other bookies in some slots of the segment that begins at `first_entry`: they hold copies of its
        entries, durably. None if there is no such segment any more, or one of them is in it already."""
        for at, segment in enumerate(self.segments):
            if segment.first_entry == first_entry:
                ensemble = replace_slots(segment.ensemble, bookies)
                if len(set(ensemble)) != len(ensemble):
                    return None
                replaced = Segment(first_entry, ensemble)
                return replace(self, segments=(*self.segments[:at], replaced, *self.segments[at + 1 :]))
        return None

    def with_state(self, state: LedgerState) -> LedgerMetadata:
        return replace(self, state=state)

    def closed_at(self, last_entry: int, length: int) -> LedgerMetadata:
        """Closed. A segment that would begin past the end is left out, unless it is the only one."""
        segments = tuple(segment for segment in self.segments if segment.first_entry <= max(0, last_entry))
        return replace(
            self, state=LedgerState.CLOSED, last_entry=last_entry, length=length, segments=segments
        )

    def _fragment(self, segment: Segment) -> Fragment:
        return Fragment(segment.first_entry, segment.ensemble, self.write_quorum, self.ack_quorum)


def encode_metadata(metadata: LedgerMetadata) -> bytes:
    return json.dumps(
        {
            "version": FORMAT_VERSION,
            "state": metadata.state.value,
            "ensemble_size": metadata.ensemble_size,
            "write_quorum": metadata.write_quorum,
            "ack_quorum": metadata.ack_quorum,
            "segments": [[segment.first_entry, list(segment.ensemble)] for segment in metadata.segments],
            "last_entry": metadata.last_entry,
            "length": metadata.length,
            "created_ms": metadata.created_ms,
            "digest": "crc32c",
            "custom": {name: b64encode(metadata.custom[name]).decode() for name in sorted(metadata.custom)},
            "token": metadata.token,
        },
        separators=(",", ":"),
    ).encode()


def decode_metadata(ledger_id: int, data: bytes) -> LedgerMetadata:
    """
    Raises:
        MetadataCorrupt: not the stored form of a ledger's metadata, or a newer version of it.
    """
    what = f"ledger {ledger_id}"
    try:
        document: dict[str, Any] = json.loads(data)
        version = document["version"]
        if version != FORMAT_VERSION:
            raise MetadataCorrupt(what, f"format version {version}; this software knows {FORMAT_VERSION}")
        metadata = LedgerMetadata(
            ledger_id=ledger_id,
            ensemble_size=int(document["ensemble_size"]),
            write_quorum=int(document["write_quorum"]),
            ack_quorum=int(document["ack_quorum"]),
            segments=tuple(
                Segment(int(first), tuple(map(str, ensemble))) for first, ensemble in document["segments"]
            ),
            token=str(document["token"]),
            created_ms=int(document["created_ms"]),
            state=LedgerState(document["state"]),
            last_entry=int(document["last_entry"]),
            length=int(document["length"]),
            custom={name: b64decode(value) for name, value in document["custom"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MetadataCorrupt(what, f"{type(error).__name__}: {error}") from error
    fault = _fault_of(metadata)
    if fault is not None:
        raise MetadataCorrupt(what, fault)
    return metadata


def _fault_of(metadata: LedgerMetadata) -> str | None:
    """What makes it impossible. Source: invariant I7 of the storage fact sheet."""
    if not 1 <= metadata.ack_quorum <= metadata.write_quorum <= metadata.ensemble_size:
        return "the quorums do not fit the ensemble"
    if not metadata.segments or metadata.segments[0].first_entry != 0:
        return "the first segment does not begin at entry 0"
    firsts = [segment.first_entry for segment in metadata.segments]
    if firsts != sorted(set(firsts)):
        return "the segments are not in order"
    for segment in metadata.segments:
        if (
            len(set(segment.ensemble)) != metadata.ensemble_size
            or len(segment.ensemble) != metadata.ensemble_size
        ):
            return f"the segment at {segment.first_entry} does not name {metadata.ensemble_size} different bookies"
    return None


def ledger_path(ledger_id: int) -> str:
    """Two levels of folders, so that none grows too wide: `/ledgers/000/0000000/000000042`."""
    digits = f"{ledger_id:0{_DIGITS}d}"
    return f"{LEDGERS_PATH}/data/{digits[:6]}/{digits[6:13]}/{digits[13:]}"


def ledger_id_of(path: str) -> int:
    return int("".join(path.split("/")[-3:]))


def replace_in_segments(
    metadata: LedgerMetadata, first_entry: int, expected: tuple[str, ...], bookies: Mapping[int, str]
) -> LedgerMetadata | None:
    """A change for `LedgerRegistry.update`: the segment at `first_entry`, if its ensemble is still `expected`,
    names `bookies` in these slots. None: nothing is to be changed, look at what is stored."""
    if not any(each == Segment(first_entry, expected) for each in metadata.segments):
        return None
    if not metadata.closed and metadata.segments[-1].first_entry == first_entry:
        return None  # Its writer or a recovery may be at work on it.
    return metadata.with_replaced(first_entry, bookies)
