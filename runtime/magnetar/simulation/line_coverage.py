"""Which lines of the protocol's production modules some seeds pass through: what no story reaches, no story can judge."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

_FUNCTION = 0x02  # CO_NEWLOCALS: the body of a function, and not of a module.


class LineCoverage:
    """Counts the lines of functions in some modules, while it is entered. Slow: a few times."""

    def __init__(self, modules: list[ModuleType]) -> None:
        self._lines: dict[str, set[int]] = {}
        self._passed: dict[str, set[int]] = {}
        for module in modules:
            path = str(module.__file__)
            self._lines[path] = _lines_of(compile(Path(path).read_text(), path, "exec"))
            self._passed[path] = set()

    def __enter__(self) -> LineCoverage:
        sys.settrace(self._call)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        passed = self._passed.get(frame.f_code.co_filename)
        if passed is None:
            return None

        def line(frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
            passed.add(frame.f_lineno)
            return line

        return line

    def report(self) -> list[tuple[str, int, int, list[int]]]:
        """Of each module its lines, how many were passed, and those that were not."""
        found = []
        for path, lines in self._lines.items():
            missed = sorted(lines - self._passed[path])
            found.append((path, len(lines), len(lines) - len(missed), missed))
        return found


def production_modules() -> list[ModuleType]:
    """The writer, the recovery, the journal, the auditor and the cursor."""
    from magnetar.autorecovery import audit, auditor, checker, lost_bookies
    from magnetar.bookie import journal, journal_replay
    from magnetar.ledger import recover, recovery, write_pipeline, writer
    from magnetar.managed_ledger import cursor, cursor_state, cursor_store

    return [
        writer,
        write_pipeline,
        recover,
        recovery,
        journal,
        journal_replay,
        auditor,
        audit,
        checker,
        lost_bookies,
        cursor,
        cursor_state,
        cursor_store,
    ]


def _lines_of(code: CodeType) -> set[int]:
    lines: set[int] = set()
    if code.co_flags & _FUNCTION and not code.co_name.startswith("<"):
        body = {line for _, _, line in code.co_lines() if line is not None}
        lines |= {line for line in body if line > code.co_firstlineno}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            lines |= _lines_of(constant)
    return lines
