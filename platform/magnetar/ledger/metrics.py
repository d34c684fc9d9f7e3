"""A ledger client's metrics, read from its counts when somebody asks."""

from __future__ import annotations

from collections.abc import Iterator

from magnetar.ledger.surroundings import Surroundings
from magnetar.metrics.sample import Sample, counter, gauge


def samples(surroundings: Surroundings) -> Iterator[Sample]:
    counts, budget, marks = surroundings.counts, surroundings.budget, surroundings.marks
    yield counter("magnetar_ledger_created_total", counts.created)
    yield gauge("magnetar_ledger_writers", surroundings.supervision.open_writers)
    yield counter("magnetar_ledger_appends_total", counts.appends)
    yield counter("magnetar_ledger_appends_refused_total", counts.refused)
    yield counter("magnetar_ledger_appends_failed_total", counts.failed)
    yield gauge("magnetar_ledger_pending_bytes", budget.pending_bytes)
    yield gauge("magnetar_ledger_lagging_bytes", budget.lagging_bytes)
    yield counter("magnetar_ledger_ensemble_changes_total", counts.ensemble_changes)
    yield counter("magnetar_ledger_replicas_dropped_total", counts.dropped_replicas)
    yield counter("magnetar_ledger_copies_given_up_total", counts.copies_given_up)
    yield counter("magnetar_ledger_shared_domains_total", counts.shared_domains)
    yield counter("magnetar_ledger_underreplicated_marks_total", marks.marked)
    yield counter("magnetar_ledger_underreplicated_marks_lost_total", marks.dropped)
    yield counter("magnetar_ledger_recoveries_total", counts.recoveries)
    yield counter("magnetar_ledger_speculative_reads_total", counts.speculative_reads)
    now = surroundings.clock.monotonic()
    for lag in budget.bookies():
        labels = {"bookie": lag.bookie}
        yield gauge("magnetar_ledger_bookie_unanswered", lag.sent - lag.answered, labels)
    for lag in budget.bookies():
        quarantined = surroundings.health.quarantined(lag.bookie, now)
        yield gauge("magnetar_ledger_bookie_quarantined", int(quarantined), {"bookie": lag.bookie})
