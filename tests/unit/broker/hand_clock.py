"""A clock that a test moves by hand, and a broker whose topics live by it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.naming import TopicName

if TYPE_CHECKING:
    from magnetar.broker.broker import Broker
    from tests.unit.broker.memory_log import MemoryLog, MemoryLogs


class HandClock:
    """Both clocks, moved together."""

    def __init__(self) -> None:
        self.now_s = 1_000_000.0

    def monotonic(self) -> float:
        return self.now_s

    def time_ms(self) -> int:
        return round(self.now_s * 1000)


class Timed:
    """A broker under a clock moved by hand. Make it before any topic is loaded."""

    def __init__(self, broker: Broker, logs: MemoryLogs) -> None:
        self.broker = broker
        self.clock = HandClock()
        self._logs = logs
        broker.context.clock = self.clock

    async def topic(self, name: str) -> PersistentTopic:
        topic = await self.broker.topics.get(TopicName.parse(name), create=True)
        assert isinstance(topic, PersistentTopic)
        self._log(name).now_ms = self.clock.time_ms()
        return topic

    def _log(self, name: str) -> MemoryLog:
        return self._logs.logs[TopicName.parse(name).managed_ledger_name]

    def advance(self, seconds: float) -> None:
        self.clock.now_s += seconds
        for log in self._logs.logs.values():
            log.now_ms = self.clock.time_ms()
