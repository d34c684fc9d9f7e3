"""Autorecovery: finds ledgers of which copies are missing, and makes the copies.

One elected auditor (`auditor.py`) watches the bookies and marks the ledgers of those that are lost; workers
(`worker.py`) take marks and repair. What decides is pure: `lost_bookies.py` (when is a bookie lost),
`verdicts.py` (which copies of a fragment are bad), `copy_plan.py` (what goes where), `repair_schedule.py`
(whose turn it is). The shells around them: `checker.py`, `copier.py`, `repair.py`.

May import `ledger`, `bookie` (for what a bookie that mends itself is told, `bookie_peers.py`), `metadata`,
`protocol`, `metrics` and `environment`. Start reading at `autorecovery.py`; what operators call is in
`operations.py` and `decommission.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from magnetar.autorecovery.autorecovery import Autorecovery
    from magnetar.autorecovery.settings import AutorecoverySettings

__all__ = ["Autorecovery", "AutorecoverySettings"]

_MODULES = {"Autorecovery": "autorecovery", "AutorecoverySettings": "settings"}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{module}"), name)
