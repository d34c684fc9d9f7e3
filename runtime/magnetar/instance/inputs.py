"""Which concrete topics an instance reads: its inputs' partitions, and what its patterns match."""

from __future__ import annotations

import re
from collections.abc import Mapping

from magnetar.client.client import Client
from magnetar.functions.config import ConsumerConfig
from magnetar.naming import TopicName


async def concrete_topics(client: Client, inputs: Mapping[str, ConsumerConfig]) -> dict[str, str]:
    """Concrete topic → the input it belongs to. Raises ClientError."""
    found: dict[str, str] = {}
    for configured, spec in inputs.items():
        if spec.regex_pattern:
            pattern = TopicName.parse(configured)
            expression = re.compile(str(pattern))
            for topic in await client.topics(f"{pattern.tenant}/{pattern.namespace}"):
                if expression.fullmatch(str(TopicName.parse(topic).base)):
                    found.setdefault(topic, configured)
        else:
            for topic in await client.partitions(configured):
                found.setdefault(topic, configured)
    return found
