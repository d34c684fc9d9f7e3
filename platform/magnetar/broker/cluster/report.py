"""What a broker says of itself in the metadata store, and who is the least loaded. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from magnetar.broker.errors import MetadataFailed
from magnetar.broker.ownership import BrokerAddress

_FORMAT: Final = 1
_TOPICS_BYTES_MAX: Final = 400_000
"""Of all topic names in a report: records of more than about a megabyte are refused. What is left out is only
opened later, when somebody asks for it."""

_TOPICS_PER_BUNDLE: Final = 20.0
_MESSAGES_PER_BUNDLE: Final = 5_000.0
_BYTES_PER_BUNDLE: Final = 5.0 * 1024 * 1024
_BUNDLES_PER_PROCESSOR: Final = 20.0


@dataclass(frozen=True, slots=True)
class Load:
    """How much a broker has to do."""

    cpu: float = 0.0
    """Of one processor, which is all an event loop can use: 0 to 1."""
    messages_per_s: float = 0.0
    bytes_per_s: float = 0.0
    topics: int = 0

    @property
    def burden(self) -> float:
        """All of it as one number: as much as so many idle bundles."""
        return (
            self.cpu * _BUNDLES_PER_PROCESSOR
            + self.messages_per_s / _MESSAGES_PER_BUNDLE
            + self.bytes_per_s / _BYTES_PER_BUNDLE
            + self.topics / _TOPICS_PER_BUNDLE
        )

    def differs_much(self, other: Load) -> bool:
        """Whether it is worth telling: by a tenth, and by more than next to nothing."""
        return abs(self.burden - other.burden) > max(0.1 * max(self.burden, other.burden), 0.5)


@dataclass(frozen=True, slots=True)
class Handover:
    """A bundle that goes to a certain broker."""

    to: str
    """That broker's id."""
    topics: tuple[str, ...] = ()
    """Those to be opened there at once: they have clients."""
    epoch: int = 0
    """Of the ownership that ends so: a bundle may go to the same broker again and again."""


@dataclass(frozen=True, slots=True)
class BrokerReport:
    """Kept by each broker as an ephemeral record; it goes when the broker does, and what it owned with it."""

    address: BrokerAddress
    load: Load = Load()
    bundles: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Each bundle it owns, with those of its topics that have clients."""
    handovers: Mapping[str, Handover] = field(default_factory=dict)
    draining: bool = False
    """It is shutting down, and takes nothing more."""

    @property
    def broker_id(self) -> str:
        return self.address.broker_id

    def tells_news(self, told: BrokerReport | None) -> bool:
        """Whether others should hear of it now, after `told`; for the load alone it can wait."""
        return (
            told is None
            or self.draining != told.draining
            or dict(self.handovers) != dict(told.handovers)
            or dict(self.bundles) != dict(told.bundles)
        )

    def encode(self) -> bytes:
        left = [_TOPICS_BYTES_MAX]
        fields: dict[str, Any] = {
            "version": _FORMAT,
            "broker": json.loads(self.address.encode()),
            "draining": self.draining,
            "load": {
                "cpu": round(self.load.cpu, 3),
                "messagesPerSecond": round(self.load.messages_per_s, 1),
                "bytesPerSecond": round(self.load.bytes_per_s, 1),
                "topics": self.load.topics,
            },
            "handovers": {
                bundle: {"to": each.to, "topics": _fitting(each.topics, left), "epoch": each.epoch}
                for bundle, each in self.handovers.items()
            },
            "bundles": {bundle: _fitting(topics, left) for bundle, topics in self.bundles.items()},
        }
        return json.dumps(fields).encode()

    @classmethod
    def decode(cls, value: bytes) -> BrokerReport:
        """
        Raises:
            MetadataFailed: it is in a newer format, or no report.
        """
        try:
            fields = json.loads(value)
            if fields["version"] != _FORMAT:
                raise MetadataFailed("a broker's report is in a newer format: upgrade this broker")
            load = fields["load"]
            return cls(
                BrokerAddress.decode(json.dumps(fields["broker"]).encode()),
                Load(load["cpu"], load["messagesPerSecond"], load["bytesPerSecond"], load["topics"]),
                {bundle: tuple(topics) for bundle, topics in fields["bundles"].items()},
                {
                    bundle: Handover(each["to"], tuple(each["topics"]), each["epoch"])
                    for bundle, each in fields["handovers"].items()
                },
                fields["draining"],
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise MetadataFailed(f"a broker's report cannot be read: {error!r}") from error


def _fitting(topics: Sequence[str], left: list[int]) -> list[str]:
    told: list[str] = []
    for topic in topics:
        left[0] -= len(topic) + 4
        if left[0] < 0:
            break
        told.append(topic)
    return told


def least_loaded(reports: Iterable[BrokerReport]) -> list[BrokerReport]:
    """Those that take something more, the least loaded first; the same for whoever asks with the same reports."""
    willing = (report for report in reports if not report.draining)
    return sorted(willing, key=lambda report: (_burden(report), report.broker_id))


def successors(
    orphans: Mapping[str, Sequence[str]], reports: Iterable[BrokerReport]
) -> Mapping[str, BrokerReport]:
    """Who takes each bundle of a broker that is gone: spread by load, the largest first.

    Whoever computes it from the same reports finds the same. Where reports differ, two may try: the lock decides.
    """
    willing = least_loaded(reports)
    if not willing:
        return {}
    burdens = {report.broker_id: _burden(report) for report in willing}
    found: dict[str, BrokerReport] = {}
    for bundle in sorted(orphans, key=lambda bundle: (-len(orphans[bundle]), bundle)):
        taker = min(willing, key=lambda report: (burdens[report.broker_id], report.broker_id))
        burdens[taker.broker_id] += 1 + len(orphans[bundle]) / _TOPICS_PER_BUNDLE
        found[bundle] = taker
    return found


def _burden(report: BrokerReport) -> float:
    return report.load.burden + len(report.bundles)
