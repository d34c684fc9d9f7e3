"""A topic's log: ledgers in a row, cursors over them, a cache of the tail, retention.

May import `ledger`, `metadata`, `protocol` and `environment`; nothing above. Start with `managed_ledger.py`
(append, roll, read) and `cursor.py`; what they decide is pure and stands in `ledger_list.py`,
`cursor_state.py` and `retention.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from magnetar.managed_ledger.position import EARLIEST, LATEST, Position

if TYPE_CHECKING:
    from magnetar.managed_ledger.config import ManagedLedgerConfig
    from magnetar.managed_ledger.cursor import Cursor
    from magnetar.managed_ledger.entry import Entry
    from magnetar.managed_ledger.entry_cache import EntryCache
    from magnetar.managed_ledger.factory import ManagedLedgerFactory
    from magnetar.managed_ledger.managed_ledger import ManagedLedger

__all__ = [
    "EARLIEST",
    "LATEST",
    "Cursor",
    "Entry",
    "EntryCache",
    "ManagedLedger",
    "ManagedLedgerConfig",
    "ManagedLedgerFactory",
    "Position",
]

_MODULES = {
    "Cursor": "cursor",
    "Entry": "entry",
    "EntryCache": "entry_cache",
    "ManagedLedger": "managed_ledger",
    "ManagedLedgerConfig": "config",
    "ManagedLedgerFactory": "factory",
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{module}"), name)
