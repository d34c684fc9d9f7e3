"""Load from the official client, in processes of its own, each with a log of all that happened to it.

producers = LoadProcess(directory, "producers", [ProducerSpec(...)], service_url).start()
consumers = LoadProcess(directory, "consumers", [ConsumerSpec(...)], service_url).start()

A line of a log is one event: `sent N`, `receipted N`, `failed N REASON`; `received PRODUCER:N`, `acknowledged
PRODUCER:N`, `trouble TEXT`. Lines are written before a message is sent and after a receipt has come, so that a log never
claims too much. `load_process.py` is what runs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Self

from magnetar.testing.acknowledged import SendLog
from magnetar.testing.processes import ProcessFailed

STOP_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class ProducerSpec:
    """One producer. Payloads are `NAME:NUMBER`, padded after a space to `bytes`."""

    name: str
    topic: str
    per_second: float = 50.0
    batching: bool = False
    keys: int = 0
    """So many partition keys, in turn; 0: none."""
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerSpec:
    """One consumer. `kind` is Exclusive, Failover, Shared or KeyShared."""

    name: str
    topic: str
    subscription: str
    kind: str = "Exclusive"


class LoadProcess:
    """Several producers, or several consumers, in one process with one client."""

    def __init__(
        self,
        directory: Path,
        name: str,
        specs: Sequence[ProducerSpec] | Sequence[ConsumerSpec],
        service_url: str,
    ) -> None:
        self.directory = directory
        self.name = name
        self.specs = specs
        self._url = service_url
        self._process: subprocess.Popen[str] | None = None

    def log_of(self, spec: ProducerSpec | ConsumerSpec) -> Path:
        return self.directory / f"{spec.name}.events"

    def start(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        kind = "producer" if isinstance(self.specs[0], ProducerSpec) else "consumer"
        plan = {
            "url": self._url,
            "kind": kind,
            "parts": [{**asdict(spec), "log": str(self.log_of(spec))} for spec in self.specs],
        }
        with (self.directory / f"{self.name}.log").open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "magnetar.testing.load_process", json.dumps(plan)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                text=True,
            )
        return self

    def ask_to_stop(self) -> None:
        """Producers send nothing more, wait for their receipts and end; consumers end."""
        process = self._running()
        assert process.stdin is not None
        if not process.stdin.closed:
            try:
                process.stdin.close()
            except BrokenPipeError:
                return  # It has ended, which whoever waits for it will see.

    def ended(self) -> bool:
        return self._running().poll() is not None

    def wait(self, timeout_s: float) -> int:
        """Its exit status.

        Raises:
            ProcessFailed: it did not end in time.
        """
        try:
            return self._running().wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ProcessFailed(
                f"{self.name} did not end within {timeout_s:.0f} s of being asked; its log ends:\n{self.log_tail()}"
            ) from None

    def log_tail(self) -> str:
        return "\n".join((self.directory / f"{self.name}.log").read_text(errors="replace").splitlines()[-20:])

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            if self._process.stdin is not None and not self._process.stdin.closed:
                self._process.stdin.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise ProcessFailed(f"{self.name} was never started")
        return self._process


class EventLog:
    """Reads what was added to a log since it was last asked."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] | None = None
        self._part = ""

    def new(self) -> list[tuple[str, str]]:
        """Events as (kind, the rest)."""
        if self._file is None:
            if not self._path.exists():
                return []
            self._file = self._path.open()
        text = self._part + self._file.read()
        lines = text.split("\n")
        self._part = lines.pop()
        return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines]


@dataclass(slots=True)
class Sends:
    """What a producer's log tells so far."""

    spec: ProducerSpec
    log: SendLog
    events: EventLog
    troubles: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, process: LoadProcess) -> list[Sends]:
        return [
            cls(spec, SendLog(spec.name), EventLog(process.log_of(spec)))
            for spec in process.specs
            if isinstance(spec, ProducerSpec)
        ]

    def update(self) -> None:
        for kind, rest in self.events.new():
            if kind == "sent":
                self.log.sent = max(self.log.sent, int(rest) + 1)
            elif kind == "receipted":
                self.log.receipted.add(int(rest))
            elif kind == "failed":
                number, _, reason = rest.partition(" ")
                self.log.failed[int(number)] = reason
            else:
                self.troubles.append(rest)


@dataclass(slots=True)
class Receipts:
    """What a consumer's log tells so far."""

    spec: ConsumerSpec
    events: EventLog
    received: list[str] = field(default_factory=list)
    """Payloads in the order they came, repetitions included."""
    acknowledged: set[str] = field(default_factory=set)
    troubles: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, process: LoadProcess) -> list[Receipts]:
        return [
            cls(spec, EventLog(process.log_of(spec)))
            for spec in process.specs
            if isinstance(spec, ConsumerSpec)
        ]

    def update(self) -> None:
        for kind, rest in self.events.new():
            if kind == "received":
                self.received.append(rest)
            elif kind == "acknowledged":
                self.acknowledged.add(rest)
            else:
                self.troubles.append(rest)
