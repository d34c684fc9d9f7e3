"""Settings of the interpreter itself that suit a process which serves for weeks.

The heap after loading is mostly modules and classes that live for ever; a full collection that walks them
stops the loop for tens of milliseconds and frees nothing. They are frozen out of the collector's sight, and
what is allocated later is collected less often, in generations large enough that a pause stays rare.
"""

from __future__ import annotations

import gc
import sys

THRESHOLDS = (50_000, 20, 50)
SWITCH_INTERVAL_S = 0.0005


def postpone() -> None:
    """Collect nothing while the program loads: nearly all that is made then stays. Ends with `settle`."""
    gc.disable()


def settle() -> None:
    """Call once, when everything that serves has been loaded and before the first request."""
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    gc.enable()


def hasten_thread_switches() -> None:
    """Let a thread that comes back from an fsync wait half a millisecond for the interpreter, not five."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
