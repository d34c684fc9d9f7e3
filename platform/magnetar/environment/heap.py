"""How a serving process treats freed memory: it keeps some, in one heap for all threads.

Payloads come and go in blocks of a hundred kilobytes and more, made in one thread and freed in another. glibc by default
gives each thread a heap and hands freed ends of it back to the system at once, so that every payload's pages are
taken, zeroed and faulted in anew. Under the interpreter's lock threads hardly ever contend for one heap.
"""

from __future__ import annotations

import ctypes
from typing import Final

_M_TRIM_THRESHOLD: Final = -1  # <malloc.h>
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8

KEPT_BYTES: Final = 32 << 20
"""Freed memory at the end of the heap that stays with the process."""
OWN_MAPPING_BYTES: Final = 4 << 20
"""Larger blocks are mapped by themselves and go back whole."""


def keep_freed_memory() -> bool:
    """Set the C library's allocator for the life of the process, before threads begin. False where it cannot be."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # Not glibc.
        return False
    settings = (
        (_M_ARENA_MAX, 1),
        (_M_TRIM_THRESHOLD, KEPT_BYTES),
        (_M_MMAP_THRESHOLD, OWN_MAPPING_BYTES),
    )
    return all(mallopt(name, value) == 1 for name, value in settings)
