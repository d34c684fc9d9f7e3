"""What it takes to run a component's process, and what comes back from it. `process.py` does it for real."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from magnetar.worker.log_file import LogFile


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """A program that takes `--spec FILE` and says on standard output when it is ready and when its input has ended."""

    module: str
    spec: Mapping[str, Any]
    work_dir: Path
    log: LogFile


@dataclass(frozen=True, slots=True)
class ExitReport:
    reason: str
    hopeless: bool = False
    """It said that it cannot work as it is configured."""


class LaunchEvents(Protocol):
    """Called on the loop, `exited` last and exactly once."""

    def ready(self, control: Mapping[int, int]) -> None:
        """Its instances run; `control` has the port each answers InstanceControl on."""

    def input_ended(self) -> None:
        """All its input has ended and is processed."""

    def exited(self, report: ExitReport) -> None:
        """It is gone, and every process of its group; or it could not be started."""


class Child(Protocol):
    @property
    def pid(self) -> int | None:
        """None before it was started and after it has ended."""

    def terminate(self) -> None:
        """Ask it to finish."""

    def kill(self) -> None:
        """End it and its whole process group."""


class Launcher(Protocol):
    def launch(self, plan: LaunchPlan, events: LaunchEvents) -> Child:
        """Start a process. Returns at once; whatever goes wrong is reported as its exit."""
