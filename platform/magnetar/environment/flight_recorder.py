"""The last facts a process logged, whatever their level: what happened just before it failed.

Every call of a `Logger` is kept here as it came, without being formatted, also where its level is off. The
facts are written out when the process stops itself because of a disk, when it ends with an exception nobody
caught, and at SIGUSR2.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import Any, TextIO

CAPACITY = 2000

_facts: deque[tuple[float, str, str, Mapping[str, Any]]] = deque(maxlen=CAPACITY)


def keep(logger: str, event: str, fields: Mapping[str, Any]) -> None:
    """Remember a fact. Thread-safe; the oldest one gives way."""
    _facts.append((time.time(), logger, event, fields))


def dump(stream: TextIO | None = None, *, last: int = CAPACITY) -> None:
    """Write the last facts, oldest first, a line each."""
    out = sys.stderr if stream is None else stream
    facts = list(_facts)
    out.write(f"flight recorder: the last {min(last, len(facts))} facts\n")
    for at, logger, event, fields in islice(facts, max(0, len(facts) - last), None):
        clock = time.strftime("%H:%M:%S", time.gmtime(at))
        pairs = " ".join(f"{name}={value!r}" for name, value in fields.items())
        out.write(f"  {clock}.{int(at % 1 * 1000):03d} {logger} {event} {pairs}\n")
    out.flush()


def clear() -> None:
    """Forget everything."""
    _facts.clear()
