"""Compares what was received with what was receipted. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from magnetar.testing.acknowledged import SendLog

IN_ORDER = ("Exclusive", "Failover")


def not_yet_received(logs: Iterable[SendLog], received: Iterable[Sequence[str]]) -> int:
    """How many receipted messages no consumer of the subscription has seen."""
    seen = {payload for each in received for payload in each}
    return sum(f"{log.name}:{number}" not in seen for log in logs for number in log.receipted)


def subscription_differences(
    name: str,
    kind: str,
    logs: Sequence[SendLog],
    received: Sequence[Sequence[str]],
    *,
    key_of: Callable[[str, int], str] | None = None,
) -> list[str]:
    """What is wrong with what a subscription's consumers got; empty when nothing is.

    Checked: every receipted message has come to one of them; none came that nobody sent; what one consumer sees of one
    producer, or of one of its keys for a key-shared subscription, comes in order for the first time.

    Args:
        received: payloads `PRODUCER:NUMBER` of each consumer, in the order they came.
        key_of: the key of a message, for a key-shared subscription.
    """
    found = []
    sent = {log.name: log for log in logs}
    for log in logs:
        missing = not_yet_received([log], received)
        if missing:
            found.append(f"{name}: {missing} acknowledged messages of {log.name} were never received")
    for consumer in received:
        streams: dict[tuple[str, str], list[int]] = {}
        for payload in dict.fromkeys(consumer):
            producer, _, text = payload.rpartition(":")
            number = int(text)
            if producer not in sent or number >= sent[producer].sent:
                found.append(f"{name}: {payload} was never sent")
                continue
            key = key_of(producer, number) if key_of else ""
            streams.setdefault((producer, key), []).append(number)
        if kind in IN_ORDER or key_of:
            for (producer, key), numbers in streams.items():
                late = next((b for a, b in pairwise(numbers) if b < a), None)
                if late is not None:
                    of = f" of key {key}" if key else ""
                    found.append(f"{name}: {producer}:{late}{of} came for the first time after a later one")
    return found
