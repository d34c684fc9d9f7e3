"""Keeps the filters' process alive, and asks it. One for a broker; started when it is first needed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from magnetar.broker.entry_filters import frames
from magnetar.environment.logs import get_logger

if TYPE_CHECKING:
    from magnetar.managed_ledger import Entry

log = get_logger("magnetar.broker")

_PROCESS: Final = "magnetar.broker.entry_filters.process"


class FilterFailed(Exception):
    """A filter could not be asked, or failed. Nothing is known of what it would have said. No client is told of it."""


class EntryFilterHost:
    """The process, and the one question it is asked at a time."""

    def __init__(self, directory: str, timeout_s: float) -> None:
        self._directory = directory
        self._timeout_s = timeout_s
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._closed = False
        self.starts = 0
        """How often the process was started: once more for each of its deaths."""

    def missing(self, names: Sequence[str]) -> list[str]:
        """Which of these filters there are not. Looks at the disk."""
        return [
            name
            for name in names
            if not name.isidentifier() or not (Path(self._directory) / f"{name}.py").is_file()
        ]

    async def judge(
        self,
        filters: Sequence[str],
        entries: Sequence[Entry],
        *,
        topic: str,
        subscription: str,
        properties: Mapping[str, str],
    ) -> str:
        """A verdict for each entry.

        Raises:
            FilterFailed: ask again later; a process that died or hung is another by then.
        """
        head = {
            "filters": list(filters),
            "topic": topic,
            "subscription": subscription,
            "properties": dict(properties),
            "positions": [(each.position.ledger_id, each.position.entry_id) for each in entries],
        }
        question = frames.encode(head, [each.data for each in entries])
        async with self._turn:
            if self._closed or not self._directory:
                raise FilterFailed("the broker has no entry filters: set entry_filters_directory")
            try:
                async with asyncio.timeout(self._timeout_s):
                    told, _ = frames.decode(await self._ask(question))
            except (TimeoutError, OSError, EOFError, ValueError) as error:
                await self._end()
                raise FilterFailed(
                    f"the entry filters' process failed: {type(error).__name__}: {error}"
                ) from error
            except BaseException:  # Whoever asked has gone: its answer must not be taken for another's.
                await self._end()
                raise
        verdicts = told.get("verdicts")
        if not isinstance(verdicts, str) or len(verdicts) != len(entries):
            raise FilterFailed(str(told.get("error", "no verdicts came")))
        return verdicts

    async def _ask(self, question: bytes) -> bytes:
        process = self._process
        if process is None or process.returncode is not None:
            process = self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                _PROCESS,
                self._directory,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            self.starts += 1
            log.info("entry_filters.started", pid=process.pid, starts=self.starts)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(question)
        await process.stdin.drain()
        length = await process.stdout.readexactly(frames.LENGTH_BYTES)
        return await process.stdout.readexactly(int.from_bytes(length, "big"))

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                process.kill()
            await asyncio.shield(process.wait())

    async def close(self) -> None:
        """End the process."""
        self._closed = True
        async with self._turn:
            await self._end()
