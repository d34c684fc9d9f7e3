"""Whether topics and subscriptions come into being by being asked for."""

from __future__ import annotations

from typing import Final

from magnetar.policies.model import CamelModel, Int32

PARTITIONED: Final = "partitioned"
NON_PARTITIONED: Final = "non-partitioned"


class AutoTopicCreation(CamelModel):
    """Overrides the broker's auto-creation of topics. JSON: Pulsar AutoTopicCreationOverride."""

    allow_auto_topic_creation: bool = False
    topic_type: str | None = None
    default_num_partitions: Int32 | None = None


class AutoSubscriptionCreation(CamelModel):
    """Overrides the broker's auto-creation of subscriptions."""

    allow_auto_subscription_creation: bool = False
