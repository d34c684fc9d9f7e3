"""Groups of bookies that a ledger is kept to, and how they stand in its metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from magnetar.ledger.errors import MetadataCorrupt

CUSTOM_KEY = "placement"
_FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class BookieGroups:
    """Source: Pulsar's bookie affinity of a namespace."""

    primary: tuple[str, ...] = ()
    secondary: tuple[str, ...] = ()
    """Used where the primary ones have too few bookies."""

    def __bool__(self) -> bool:
        return bool(self.primary or self.secondary)

    def __str__(self) -> str:
        if not self:
            return ""
        names = ", ".join(self.primary) or "none"
        return f"groups {names}" + (f" or {', '.join(self.secondary)}" if self.secondary else "")

    def custom(self) -> dict[str, bytes]:
        """What stands in a ledger's custom metadata: ensemble changes and repairs keep to it too."""
        if not self:
            return {}
        said = {
            "version": _FORMAT_VERSION,
            "primary": list(self.primary),
            "secondary": list(self.secondary),
        }
        return {CUSTOM_KEY: json.dumps(said, separators=(",", ":")).encode()}

    @staticmethod
    def of(ledger_id: int, custom: Mapping[str, bytes]) -> BookieGroups:
        """
        Raises:
            MetadataCorrupt
        """
        value = custom.get(CUSTOM_KEY)
        if value is None:
            return NO_GROUPS
        try:
            said = json.loads(value)
            if said["version"] != _FORMAT_VERSION:
                raise ValueError(f"format version {said['version']}; this software knows {_FORMAT_VERSION}")
            return BookieGroups(tuple(map(str, said["primary"])), tuple(map(str, said["secondary"])))
        except (ValueError, KeyError, TypeError) as error:
            raise MetadataCorrupt(f"the placement of ledger {ledger_id}", str(error)) from error


NO_GROUPS = BookieGroups()
