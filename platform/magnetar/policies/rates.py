"""Rates that clients may not exceed; a number of 0 or less is no limit."""

from __future__ import annotations

from magnetar.policies.model import CamelModel, Int32, Int64


class DispatchRate(CamelModel):
    """How fast messages go out."""

    dispatch_throttling_rate_in_msg: Int32 = -1
    dispatch_throttling_rate_in_byte: Int64 = -1
    relative_to_publish_rate: bool = False
    rate_period_in_second: Int32 = 1


class PublishRate(CamelModel):
    """How fast messages come in."""

    publish_throttling_rate_in_msg: Int32 = -1
    publish_throttling_rate_in_byte: Int64 = -1


class SubscribeRate(CamelModel):
    """How often one consumer may subscribe."""

    subscribe_throttling_rate_per_consumer: Int32 = -1
    rate_period_in_second: Int32 = 30
