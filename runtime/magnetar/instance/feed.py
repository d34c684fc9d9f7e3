"""What is in the user process' hands: entries go in by turns, their results come back in the same order."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from magnetar.environment.clock import Clock
from magnetar.functions.process.wire import Entry, Result, ToProcess, entry_frame, read_beat, read_result
from magnetar.instance.delivery import Position, Run
from magnetar.instance.keeper import ProcessKeeper


class Fed(Protocol):
    """An input that feeds the process."""

    number: int
    """What the process calls it."""

    @property
    def topic(self) -> str: ...

    @property
    def configured(self) -> str:
        """The input of the config that the topic belongs to."""

    def entry(self, run: Run) -> Entry:
        """What to send, but for its serial."""

    def ran(self, run: Run, result: Result) -> None: ...


class Feed:
    """Sends runs to the process and hands results to the inputs they belong to."""

    def __init__(self, keeper: ProcessKeeper, clock: Clock) -> None:
        self._keeper = keeper
        self._clock = clock
        self._serial = 0
        self._out: deque[tuple[int, Fed, Run]] = deque()
        self._known: set[int] = set()

    def reset(self) -> None:
        """There is a new process: it knows nothing."""
        self._out.clear()
        self._known.clear()

    def run(self, fed: Fed, run: Run) -> None:
        """Send an entry. Without a process nothing is sent: the next one is told everything anew."""
        process = self._keeper.process
        if process is None:
            return
        if fed.number not in self._known:
            self._known.add(fed.number)
            process.send_json(
                ToProcess.TOPIC, {"number": fed.number, "name": fed.topic, "configured": fed.configured}
            )
        self._serial = (self._serial + 1) & 0x7FFF_FFFF
        entry = fed.entry(run)
        entry.serial = self._serial
        if not self._out:
            self._keeper.watchdog.began(self._serial, self._clock.monotonic())
        self._out.append((self._serial, fed, run))
        process.send(entry_frame(entry), entry.payload)
        self._keeper.look_after()

    def suspect(self) -> tuple[Fed, Position] | None:
        """What the process is at, or was when it died."""
        if not self._out:
            return None
        _, fed, run = self._out[0]
        return fed, run.position

    def running(self, serial: int) -> tuple[Fed, Position] | None:
        """The input and entry that the process was given under this serial, if it still has it."""
        for number, fed, run in self._out:
            if number == serial:
                return fed, run.position
        return None

    def result(self, body: memoryview) -> None:
        """A RESULT frame came."""
        result = read_result(body)
        serial, fed, run = self._out.popleft()
        assert serial == result.serial, "results come in the order of the entries"
        if self._out:
            self._keeper.watchdog.began(self._out[0][0], self._clock.monotonic())
        else:
            self._keeper.watchdog.idle()
        fed.ran(run, result)

    def beat(self, body: memoryview) -> None:
        """A BEAT frame came: a long entry moves, or does not."""
        serial, done = read_beat(body)
        if self._out and self._out[0][0] == serial:
            self._keeper.watchdog.progressed(serial, done, self._clock.monotonic())
