"""Backlog quotas: how far behind a subscription may fall, and what happens then."""

from __future__ import annotations

from enum import StrEnum

from pydantic import AliasChoices, Field, computed_field

from magnetar.policies.model import CamelModel, Int32, Int64


class BacklogQuotaType(StrEnum):
    """What a quota measures."""

    destination_storage = "destination_storage"
    """Bytes behind the slowest subscription."""
    message_age = "message_age"
    """Age of the oldest message that some subscription has not acknowledged."""


class BacklogQuotaPolicy(StrEnum):
    """What happens when a quota is exceeded."""

    producer_request_hold = "producer_request_hold"
    producer_exception = "producer_exception"
    consumer_backlog_eviction = "consumer_backlog_eviction"


class BacklogQuota(CamelModel):
    """One limit; a size or time of 0 or less is no limit."""

    limit_size: Int64 = Field(
        default=-1,
        validation_alias=AliasChoices("limitSize", "limit", "limit_size"),
        serialization_alias="limitSize",
    )
    limit_time: Int32 = -1
    policy: BacklogQuotaPolicy | None = None

    @computed_field  # type: ignore[prop-decorator]  # As pydantic documents it.
    @property
    def limit(self) -> int:
        """What clients before 2.9 read."""
        return self.limit_size


BacklogQuotas = dict[BacklogQuotaType, BacklogQuota]
