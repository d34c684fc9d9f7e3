"""What is counted of a bookie that serves, as metrics. Read at scrape time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from magnetar.bookie.checkpoint import Checkpointer
from magnetar.bookie.door import Entrance
from magnetar.bookie.index_rebuild import IndexRebuild
from magnetar.bookie.limbo import Limbo
from magnetar.bookie.mode import Mode
from magnetar.bookie.read_cache import ReadCache
from magnetar.metrics.sample import Sample, counter, gauge


def serving_samples(
    labels: Mapping[str, str],
    entrance: Entrance,
    read_cache: ReadCache,
    checkpointer: Checkpointer,
    index_rebuild: IndexRebuild,
    limbo: Limbo,
    mode: Mode,
) -> Iterator[Sample]:
    yield gauge("bookie_adds_waiting", len(entrance.front), labels)
    yield gauge("bookie_background_adds_waiting", len(entrance.back), labels)
    yield counter("bookie_adds_refused_count", entrance.front.refused, labels)
    yield gauge("bookie_read_cache_size", read_cache.bytes, labels)
    yield counter("bookie_read_cache_hits_count", read_cache.hits, labels)
    yield counter("bookie_read_cache_misses_count", read_cache.misses, labels)
    yield counter("bookie_checkpoints_count", checkpointer.completed, labels)
    yield counter("bookie_index_rebuilds_count", index_rebuild.begun, labels)
    yield gauge("bookie_in_limbo", int(limbo.reason is not None), labels)
    yield gauge("bookie_ledgers_in_limbo", len(limbo.ledgers), labels)
    yield gauge("bookie_ledger_dir_free_bytes", mode.free_bytes, labels)
    yield gauge("bookie_ledger_dir_total_bytes", mode.total_bytes, labels)
