"""The ledger client: who holds which entry, writing in order, reading, and recovery of what a writer left.

May import `protocol`, `metadata`, `metrics` and `environment`; nothing above. What decides is pure:
`write_pipeline.py`, `quorum_read.py`, `coverage.py`, `recovery.py`, `arrangement.py`, `replica_budget.py` and
`bookie_health.py`. The shells around them: `writer.py`, `reader.py`, `recover.py`, `ensembles.py`,
`supervision.py`, and `client.py`, where to start reading.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from magnetar.ledger.client import LedgerClient
    from magnetar.ledger.metadata import LedgerMetadata
    from magnetar.ledger.provider import MetadataBookieProvider
    from magnetar.ledger.reader import LedgerReader
    from magnetar.ledger.settings import LedgerClientSettings
    from magnetar.ledger.writer import LedgerWriter

__all__ = [
    "LedgerClient",
    "LedgerClientSettings",
    "LedgerMetadata",
    "LedgerReader",
    "LedgerWriter",
    "MetadataBookieProvider",
]

_MODULES = {
    "LedgerClient": "client",
    "LedgerClientSettings": "settings",
    "LedgerMetadata": "metadata",
    "LedgerReader": "reader",
    "LedgerWriter": "writer",
    "MetadataBookieProvider": "provider",
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{module}"), name)
