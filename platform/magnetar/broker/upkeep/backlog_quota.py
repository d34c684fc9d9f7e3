"""Whether a backlog exceeds its quotas, and how much of it has to go. Pure.

Source: Pulsar BacklogQuotaManager, which leaves nine tenths of a quota after an eviction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from magnetar.policies.quotas import BacklogQuota, BacklogQuotaPolicy, BacklogQuotaType

_LEFT_AFTER_EVICTION: Final = 0.9


class Breach(NamedTuple):
    """A quota that is exceeded."""

    kind: BacklogQuotaType
    policy: BacklogQuotaPolicy
    limit: int
    """Bytes or seconds."""
    measured: int

    def __str__(self) -> str:
        unit = "bytes" if self.kind is BacklogQuotaType.destination_storage else "seconds"
        return f"its backlog of {self.measured} {unit} exceeds the quota of {self.limit}"


def size_limit(quotas: Mapping[BacklogQuotaType, BacklogQuota]) -> int:
    """Bytes; 0: no limit."""
    quota = quotas.get(BacklogQuotaType.destination_storage)
    return max(0, quota.limit_size) if quota is not None else 0


def time_limit_s(quotas: Mapping[BacklogQuotaType, BacklogQuota]) -> int:
    """Seconds; 0: no limit."""
    quota = quotas.get(BacklogQuotaType.message_age)
    return max(0, quota.limit_time) if quota is not None else 0


def breaches(
    quotas: Mapping[BacklogQuotaType, BacklogQuota], backlog_bytes: int, oldest_age_s: float | None
) -> list[Breach]:
    """The quotas exceeded by the largest backlog and by the oldest message (None: there is none)."""
    found = []
    limit = size_limit(quotas)
    if limit and backlog_bytes > limit:
        kind = BacklogQuotaType.destination_storage
        found.append(Breach(kind, _policy(quotas[kind]), limit, backlog_bytes))
    limit = time_limit_s(quotas)
    if limit and oldest_age_s is not None and oldest_age_s > limit:
        kind = BacklogQuotaType.message_age
        found.append(Breach(kind, _policy(quotas[kind]), limit, int(oldest_age_s)))
    return found


def _policy(quota: BacklogQuota) -> BacklogQuotaPolicy:
    return quota.policy or BacklogQuotaPolicy.producer_request_hold


def entries_to_evict(limit_bytes: int, backlog_bytes: int, backlog_entries: int) -> int:
    """How many of its oldest entries a backlog has to lose, if its entries are about equal; 0 if none."""
    target = int(limit_bytes * _LEFT_AFTER_EVICTION)
    if backlog_bytes <= target or backlog_entries <= 0:
        return 0
    surplus = backlog_bytes - target
    return min(backlog_entries, max(1, -(-surplus * backlog_entries // backlog_bytes)))
