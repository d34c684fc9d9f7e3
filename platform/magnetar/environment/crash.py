"""Named places at which a test may ask the process to die.

    MAGNETAR_CRASH_POINT="journal.before_sync"      die at the first passage
    MAGNETAR_CRASH_POINT="journal.before_sync:17"   die at the 17th
    MAGNETAR_CRASH_ONCE=FILE                        of all processes that share the variable, only the first dies:
                                                    it leaves FILE behind

A death by SIGKILL, as from outside: no handler, no flush, no `finally`. In production the variable is unset
and a passage costs one comparison.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

VARIABLE = "MAGNETAR_CRASH_POINT"
ONCE = "MAGNETAR_CRASH_ONCE"


class _Trigger:
    """The one armed crash point of this process, if any."""

    __slots__ = ("_lock", "name", "remaining")

    def __init__(self) -> None:
        self.name: str | None = None
        self.remaining = 0
        self._lock = threading.Lock()

    def arm(self, text: str | None) -> None:
        name, _, count = (text or "").partition(":")
        if count and not count.isdecimal():
            raise ValueError(f"{VARIABLE}={text!r}: expected NAME or NAME:N with N a positive number")
        self.name = name or None
        self.remaining = max(1, int(count or 1))

    def passed(self, name: str, also: int | None) -> None:
        if name != self.name:
            return
        with self._lock:
            self.remaining -= 1
            if self.remaining or not _first_of_all():
                return
        if also is not None:
            os.kill(also, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


_trigger = _Trigger()
_trigger.arm(os.environ.get(VARIABLE))
_watcher: Callable[[str, int | None], None] | None = _trigger.passed if _trigger.name is not None else None
"""Told of each passage, if there is one."""


def crash_point(name: str, *, also: int | None = None) -> None:
    """Die here if the environment asks for it; otherwise do nothing, quickly.

    Args:
        also: another process that dies first, where the place lies in a helper process and the death meant is
            that of the job it works for.
    """
    if _watcher is not None:
        _watcher(name, also)


def _first_of_all() -> bool:
    token = os.environ.get(ONCE)
    if token is None:
        return True
    try:
        os.close(os.open(token, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return False
    return True


def arm(text: str | None) -> None:
    """Arm `NAME` or `NAME:N` from now on, or nothing: for a process that is told after it has started."""
    global _watcher
    _trigger.arm(text)
    _watcher = _trigger.passed if _trigger.name is not None else None


def observe(watcher: Callable[[str], None] | None) -> None:
    """Tell `watcher` the name of each crash point passed, in place of dying at one. What it raises is raised there.

    For simulations, whose processes die by an exception that nobody may catch. None: as the environment has it.
    """
    global _watcher
    if watcher is not None:
        _watcher = lambda name, also: watcher(name)  # noqa: E731
    else:
        _watcher = _trigger.passed if _trigger.name is not None else None
