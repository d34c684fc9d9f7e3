"""Keeps what a producer sent and had receipted, and compares it with what a topic holds. Pure.

Payloads are `PRODUCER:NUMBER`, numbered from 0 in the order sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(slots=True)
class SendLog:
    """One producer's sends. `sent` and `receipted` may be written by different threads.

    Attributes:
        repeatable: numbers that were sent and not receipted at the moment of some kill: the client may have sent
            them again.
    """

    name: str
    sent: int = 0
    receipted: set[int] = field(default_factory=set)
    failed: dict[int, str] = field(default_factory=dict)
    repeatable: set[int] = field(default_factory=set)

    def payload(self, number: int) -> bytes:
        """The message with this number."""
        return f"{self.name}:{number}".encode()

    def in_flight(self) -> set[int]:
        """Sent, and neither receipted nor failed."""
        return set(range(self.sent)) - set(self.receipted) - set(self.failed)

    def note_kill(self) -> int:
        """Remember what a death leaves in doubt; returns how many messages that is.

        Call it when the process is dead and before it is started again: then no receipt can come, and all that
        has none may be sent again.
        """
        doubtful = self.in_flight()
        self.repeatable |= doubtful
        return len(doubtful)


def differences(logs: Iterable[SendLog], stored: Iterable[bytes], *, repeats_allowed: bool) -> list[str]:
    """What is wrong with a topic's content; empty when nothing is.

    Checked: every receipted message is there; nothing is there that was not sent; first occurrences are in each
    producer's order; repeats are only of sends that had no receipt at a kill, and none where deduplication is on.
    """
    found: list[str] = []
    by_producer: dict[str, list[int]] = {}
    for payload in stored:
        name, _, number = payload.decode().rpartition(":")
        by_producer.setdefault(name, []).append(int(number))
    for log in logs:
        numbers = by_producer.pop(log.name, [])
        counts = Counter(numbers)
        missing = sorted(set(log.receipted) - counts.keys())
        if missing:
            found.append(
                f"{log.name}: {len(missing)} acknowledged messages are lost, the first is {missing[0]}"
            )
        unknown = sorted(number for number in counts if number >= log.sent)
        if unknown:
            found.append(f"{log.name}: {unknown[:5]} were never sent")
        firsts = list(dict.fromkeys(numbers))
        if firsts != sorted(firsts):
            wrong = next(b for a, b in pairwise(firsts) if b < a)
            found.append(f"{log.name}: {wrong} first appears after a later message")
        repeated = sorted(number for number, count in counts.items() if count > 1)
        if not repeats_allowed and repeated:
            found.append(
                f"{log.name}: {len(repeated)} duplicates in spite of deduplication, the first is {repeated[0]}"
            )
        surprising = sorted(set(repeated) - log.repeatable)
        if surprising:
            found.append(f"{log.name}: {surprising[:5]} are repeated although their receipts had come")
    found += [f"{name}: nobody sent as this producer" for name in by_producer]
    return found
