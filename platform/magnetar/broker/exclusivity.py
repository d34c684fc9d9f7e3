"""Who may produce: shared access, and the three exclusive ones. Pure.

Sources: PIP-68; Pulsar AbstractTopic.addProducer and its table of access modes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Generic, TypeVar

from magnetar.broker.errors import ProducerBusy, ProducerFenced

ProducerT = TypeVar("ProducerT")

_EPOCHS_END: Final = 1 << 62
"""Nobody counts so far, and whoever claims to would leave no number for the next owner."""


class AccessMode(IntEnum):
    """Numbered as `ProducerAccessMode` on the wire."""

    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3

    @property
    def text(self) -> str:
        """As stats name it."""
        return _NAMES[self]


_NAMES = {
    AccessMode.SHARED: "Shared",
    AccessMode.EXCLUSIVE: "Exclusive",
    AccessMode.WAIT_FOR_EXCLUSIVE: "WaitForExclusive",
    AccessMode.EXCLUSIVE_WITH_FENCING: "ExclusiveWithFencing",
}


@dataclass(frozen=True, slots=True)
class Request(Generic[ProducerT]):
    """A producer that asks to be let in."""

    producer: ProducerT
    mode: AccessMode
    epoch: int | None = None
    """The topic epoch it held before, where it comes back."""


@dataclass(frozen=True, slots=True)
class Admission(Generic[ProducerT]):
    """What happens to a request that is not refused."""

    granted: bool
    """False: it waits in the queue."""
    new_epoch: int | None = None
    """To be persisted before the producer is told; None where access is shared."""
    evicted: tuple[ProducerT, ...] = ()
    """Producers that lose the topic."""
    refused: tuple[ProducerT, ...] = ()
    """Waiting producers that will never get it."""


class Exclusivity(Generic[ProducerT]):
    """The producers of one topic: shared ones, or an exclusive one and those who wait for it."""

    def __init__(self, epoch: int | None = None) -> None:
        self.epoch = epoch
        """Counts exclusive owners; None before the first."""
        self._shared: list[ProducerT] = []
        self._exclusive: ProducerT | None = None
        self._waiting: list[Request[ProducerT]] = []

    @property
    def exclusive(self) -> ProducerT | None:
        return self._exclusive

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def admit(self, request: Request[ProducerT]) -> Admission[ProducerT]:
        """Let a producer in, queue it, or refuse it.

        Raises:
            ProducerBusy: shared access to a topic that has, or waits for, an exclusive producer.
            ProducerFenced: exclusive access is taken, or this producer lost it to a later one.
        """
        taken = self._exclusive is not None or bool(self._waiting)
        match request.mode:
            case AccessMode.SHARED:
                if taken:
                    raise ProducerBusy(
                        "the topic has an exclusive producer: wait until it leaves, or fence it"
                    )
                self._shared.append(request.producer)
                return Admission(granted=True)
            case AccessMode.EXCLUSIVE:
                if taken or self._shared:
                    raise ProducerFenced("the topic has other producers: exclusive access is refused")
                return Admission(granted=True, new_epoch=self._take_over(request))
            case AccessMode.WAIT_FOR_EXCLUSIVE:
                if taken or self._shared:
                    self._waiting.append(request)
                    return Admission(granted=False)
                return Admission(granted=True, new_epoch=self._take_over(request))
            case AccessMode.EXCLUSIVE_WITH_FENCING:
                self._check_epoch(request)
                evicted = (*self._shared, *(() if self._exclusive is None else (self._exclusive,)))
                refused = tuple(each.producer for each in self._waiting)
                self._shared.clear()
                self._waiting.clear()
                self._exclusive = None
                return Admission(
                    granted=True, new_epoch=self._take_over(request), evicted=evicted, refused=refused
                )

    def leave(self, producer: ProducerT) -> None:
        """A producer is gone, or gives up waiting. `promote` tells who is next."""
        if self._exclusive is producer:
            self._exclusive = None
        self._shared = [each for each in self._shared if each is not producer]
        self._waiting = [each for each in self._waiting if each.producer is not producer]

    def promote(self) -> tuple[ProducerT, int] | ProducerT | None:
        """Give a free topic to the first that waits.

        Returns the producer and its epoch, the producer alone where it has been fenced meanwhile (refuse
        it, and ask again), or None where nobody can be promoted.
        """
        if self._exclusive is not None or self._shared or not self._waiting:
            return None
        request = self._waiting.pop(0)
        try:
            return request.producer, self._take_over(request)
        except ProducerFenced:
            return request.producer

    def _take_over(self, request: Request[ProducerT]) -> int:
        self._check_epoch(request)
        if request.epoch is not None:
            self.epoch = request.epoch
        else:
            self.epoch = 0 if self.epoch is None else self.epoch + 1
        self._exclusive = request.producer
        return self.epoch

    def _check_epoch(self, request: Request[ProducerT]) -> None:
        if request.epoch is not None and request.epoch >= _EPOCHS_END:
            raise ProducerFenced(f"topic epoch {request.epoch} was never given to anybody")
        if request.epoch is not None and self.epoch is not None and request.epoch < self.epoch:
            raise ProducerFenced(
                f"the topic went to a later producer (epoch {self.epoch}, yours is {request.epoch})"
            )
