"""What a ledger client has done, as plain integers; `metrics.py` reads them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """Since the client was made."""

    created: int = 0
    appends: int = 0
    """Confirmed."""
    refused: int = 0
    """Appends, for want of room."""
    failed: int = 0
    """Appends told that their outcome is unknown."""
    ensemble_changes: int = 0
    dropped_replicas: int = 0
    """Ledgers and bookies: a bookie lagged, and was to be replaced in the ledger."""
    copies_given_up: int = 0
    """Fragments and bookies: an entry is confirmed, and its copy there will not come."""
    shared_domains: int = 0
    """Ensembles with two copies of an entry in one failure domain."""
    recoveries: int = 0
    speculative_reads: int = 0
