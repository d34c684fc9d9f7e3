"""Topic names.

A full name reads `persistent://tenant/namespace/topic`. A partition of a partitioned topic is a topic
of its own, named `<topic>-partition-<n>`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote_plus

from magnetar.naming.errors import InvalidName, InvalidTopicName
from magnetar.naming.namespace import NamespaceName

Domain = Literal["persistent", "non-persistent"]

_PARTITION = re.compile(r"(.+)-partition-(0|[1-9][0-9]{0,9})", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

_EVENT_TOPICS = frozenset(
    {
        "__change_events",
        "__transaction_buffer_snapshot",
        "__transaction_buffer_snapshot_indexes",
        "__transaction_buffer_snapshot_segments",
    }
)
_COORDINATOR_TOPIC = "transaction_coordinator_assign"
_TRANSACTION_LOG_PREFIX = "__transaction_log_"
_PENDING_ACK_SUFFIX = "__transaction_pending_ack"


@dataclass(frozen=True, slots=True, order=True)
class TopicName:
    """The name of a topic, of a partition, or of a partitioned topic as a whole."""

    domain: Domain
    tenant: str
    namespace: str
    """The namespace's own name, without its tenant."""
    local_name: str
    """The last part, partition suffix included. May hold any character but control characters and `/`."""

    def __post_init__(self) -> None:
        if self.domain not in ("persistent", "non-persistent"):
            raise InvalidTopicName(str(self), "the domain is either persistent or non-persistent")
        try:
            NamespaceName(self.tenant, self.namespace)
        except InvalidName as error:
            raise InvalidTopicName(str(self), str(error)) from None
        if not self.local_name.strip():
            raise InvalidTopicName(str(self), "the last part is empty")
        if "/" in self.local_name or _CONTROL.search(self.local_name):
            raise InvalidTopicName(str(self), "the last part holds a slash or a control character")

    @classmethod
    def parse(cls, text: str) -> TopicName:
        """Read a full name, `tenant/namespace/topic`, or a bare `topic` of `public/default`.

        Raises:
            InvalidTopicName: it is none of these.
        """
        domain, separator, rest = text.partition("://")
        parts = (rest if separator else text).split("/")
        if not separator:
            domain = "persistent"
            if len(parts) == 1:
                parts = ["public", "default", *parts]
        if len(parts) != 3:
            raise InvalidTopicName(text, "write persistent://tenant/namespace/topic, or topic alone")
        if domain == "persistent":
            return cls("persistent", *parts)
        if domain == "non-persistent":
            return cls("non-persistent", *parts)
        raise InvalidTopicName(text, f"unknown domain {domain!r}: use persistent or non-persistent")

    def __str__(self) -> str:
        return f"{self.domain}://{self.tenant}/{self.namespace}/{self.local_name}"

    @property
    def persistent(self) -> bool:
        """Whether messages are stored."""
        return self.domain == "persistent"

    @property
    def namespace_name(self) -> NamespaceName:
        """The namespace the topic lives in."""
        return NamespaceName(self.tenant, self.namespace)

    @property
    def partition(self) -> int:
        """The index after `-partition-`, or -1. Source: Pulsar TopicName: no leading zeros."""
        match = _PARTITION.fullmatch(self.local_name)
        return int(match[2]) if match else -1

    @property
    def base(self) -> TopicName:
        """The partitioned topic this is a partition of; the topic itself where it is not one."""
        match = _PARTITION.fullmatch(self.local_name)
        return TopicName(self.domain, self.tenant, self.namespace, match[1]) if match else self

    def partition_name(self, index: int) -> TopicName:
        """The name of partition `index` of this topic."""
        return TopicName(self.domain, self.tenant, self.namespace, f"{self.local_name}-partition-{index}")

    @property
    def encoded_local(self) -> str:
        """The last part as it stands in paths and URLs. Source: Pulsar Codec, Java's URLEncoder.

        `.` and `..` alone are encoded too, for a path would lose them.
        """
        if self.local_name in (".", ".."):
            return self.local_name.replace(".", "%2E")
        return quote_plus(self.local_name, safe="*").replace("~", "%7E")

    @property
    def managed_ledger_name(self) -> str:
        """What the topic's managed ledger is called, and its path in metadata ends with."""
        return f"{self.tenant}/{self.namespace}/{self.domain}/{self.encoded_local}"

    @property
    def is_system(self) -> bool:
        """Whether brokers keep this topic for themselves, hidden from listings."""
        local = self.base.local_name
        if local in _EVENT_TOPICS or local.endswith(_PENDING_ACK_SUFFIX):
            return True
        in_system_namespace = self.tenant == "pulsar" and self.namespace == "system"
        return in_system_namespace and (
            local == _COORDINATOR_TOPIC or local.startswith(_TRANSACTION_LOG_PREFIX)
        )
