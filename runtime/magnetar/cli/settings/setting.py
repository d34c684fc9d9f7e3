"""One value that somebody has set, and where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Setting:
    """What an error must name."""

    key: str  # `port`, `broker.max_message_bytes`, `worker.scheduling.…`
    value: Any
    origin: str
