"""A metadata store whose lease a test ends and renews."""

from __future__ import annotations

import math
from typing import Any

from magnetar.metadata.memory import MemoryEnsemble


class LeasedStore:
    """A session of an ensemble in memory, with a lease as a store over a network has one."""

    def __init__(self, ensemble: MemoryEnsemble | None = None) -> None:
        self.session = (ensemble or MemoryEnsemble()).connect()
        self.lease_until = math.inf

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)
