"""Processes of the operating system, simulated on one loop of virtual time: each can be killed or stopped between any
two steps of what runs in it, without its knowing.

What a process does is told by its context: every callback, timer, task and job for a thread that is scheduled from
within a process belongs to it. Callbacks of a killed process are dropped, those of a stopped one wait.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from heapq import heappop, heappush
from typing import Any, TypeVar

from magnetar.simulation.loop import Deadlock

T = TypeVar("T")
_inside: ContextVar[Process | None] = ContextVar("simulated_process", default=None)


class ProcessDied(BaseException):
    """Raised where a process dies in the middle of a step. Nobody may catch it: there is nobody left."""


class Process:
    """One process. It lives once: a restart is another one."""

    def __init__(self, loop: ProcessLoop, name: str) -> None:
        self.name = name
        self.alive = True
        self.stopped = False
        self.held: list[_Handle] = []
        self.context = Context()
        self.context.run(_inside.set, self)
        self._loop = loop
        self.tasks: list[asyncio.Task[Any]] = []
        self._dead: list[asyncio.Task[Any]] = []

    def run(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start something in it. The task's result can be awaited from outside."""
        return self._loop.create_task(work, context=self.context)

    def call(self, callback: Callable[..., object], *args: Any) -> None:
        self._loop.ready.append(_Handle(callback, args, self.context, self._loop.now, self))

    def call_later(self, delay_s: float, callback: Callable[..., object], *args: Any) -> None:
        loop = self._loop
        when = loop.now + delay_s
        loop.at(when, _Handle(callback, args, self.context, when, self))

    def call_now(self, callback: Callable[[], object]) -> None:
        """Something reaches it from outside: its next step, at once where it can take one."""
        if self.stopped or not self.alive:
            self.call(callback)
        else:
            self.context.run(callback)

    def kill(self) -> None:
        """As by SIGKILL: nothing of it happens any more."""
        if self.alive:
            self.alive = False
            self.held.clear()
            # Kept, so that none of them is closed, running its `finally`, at a moment that nobody chose.
            self._dead = [task for task in self.tasks if not task.done()]
            self.tasks.clear()
            self._loop.graveyard.append(self)

    def bury(self) -> None:
        for task in self._dead:
            _let_go(task)
        self._dead.clear()

    def stop(self) -> None:
        """As by SIGSTOP."""
        self.stopped = True

    def resume(self) -> None:
        if self.stopped:
            self.stopped = False
            held, self.held = self.held, []
            self._loop.ready.extend(held)


def inside() -> Process | None:
    """The process that is taking a step now."""
    return _inside.get()


class _Handle:
    __slots__ = ("_args", "_callback", "_context", "_when", "process")

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context,
        when: float,
        process: Process | None,
    ) -> None:
        self._callback: Callable[..., object] | None = callback
        self._args = args
        self._context = context
        self._when = when
        self.process = process

    def cancel(self) -> None:
        self._callback = None
        self._args = ()

    def cancelled(self) -> bool:
        return self._callback is None

    def when(self) -> float:
        return self._when


class SimulatedPool:
    """A pool of threads: what is submitted takes its time, one after the other where there is one thread."""

    def __init__(self, workers: int, takes_s: Callable[[], float]) -> None:
        self.workers = workers
        self.takes_s = takes_s
        self.free_at = 0.0

    def shutdown(self, wait: bool = True) -> None:
        """There are no threads."""


class ProcessLoop(asyncio.BaseEventLoop):
    """Virtual time, and steps taken in the order in which they were scheduled."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.ready: deque[_Handle] = deque()
        self._timers: list[tuple[float, int, _Handle]] = []
        self._number = 0
        self.steps = 0
        self.graveyard: list[Process] = []
        self.died: Callable[[BaseException], None] | None = None
        """Told of what a callback has raised, save deaths."""
        self.set_exception_handler(self._heard)
        self.get_debug = bool  # type: ignore[method-assign]  # Each future asks: no.

    def time(self) -> float:
        return self.now

    # What the loop of asyncio is asked for.

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> _Handle:
        if context is not None:
            process = context.get(_inside)
        else:
            process = _inside.get()
            context = process.context if process is not None else copy_context()
        handle = _Handle(callback, args, context, self.now, process)
        self.ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> _Handle:
        return self.call_at(self.now + delay if delay > 0 else self.now, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> _Handle:
        if context is not None:
            process = context.get(_inside)
        else:
            process = _inside.get()
            context = process.context if process is not None else copy_context()
        handle = _Handle(callback, args, context, when, process)
        self.at(when, handle)
        return handle

    def at(self, when: float, handle: _Handle) -> None:
        self._number = number = self._number + 1
        heappush(self._timers, (when, number, handle))

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: object = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        if context is not None:
            process = context.get(_inside)
        else:
            process = _inside.get()
            context = process.context if process is not None else copy_context()
        task = asyncio.Task(coro, loop=self, context=context)
        if process is not None:
            process.tasks.append(task)
        return task

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = self.create_future()
        takes_s = 0.0005
        start = self.now
        if isinstance(executor, SimulatedPool):
            takes_s = executor.takes_s()
            if executor.workers == 1:
                start = max(start, executor.free_at)
                executor.free_at = start + takes_s
        self.call_at(start + takes_s, _job, future, func, args)
        return future

    def _run_once(self) -> None:
        ready, timers = self.ready, self._timers
        if not ready:
            while timers:
                when, _, handle = heappop(timers)
                if handle._callback is not None:
                    if when > self.now:
                        self.now = when
                    ready.append(handle)
                    while timers and timers[0][0] <= self.now:
                        handle = heappop(timers)[2]
                        if handle._callback is not None:
                            ready.append(handle)
                    break
            else:
                raise Deadlock("nothing is scheduled, and the simulation has not ended")
        for _ in range(len(ready)):
            handle = ready.popleft()
            process = handle.process
            if process is not None:
                if not process.alive:
                    continue
                if process.stopped:
                    process.held.append(handle)
                    continue
            callback = handle._callback
            if callback is None:
                continue
            self.steps += 1
            try:
                handle._context.run(callback, *handle._args)
            except ProcessDied:
                continue
            except Exception as error:
                self._report(error)

    # The end.

    def run(self, story: Coroutine[Any, Any, T]) -> T:
        """Run `story` to its end, and forget everything else.

        Raises:
            Deadlock: it can never end.
        """
        try:
            return self.run_until_complete(story)
        finally:
            for process in self.graveyard:
                process.bury()
            for task in asyncio.all_tasks(self):
                _let_go(task)
            self.ready.clear()
            self._timers.clear()
            self.close()

    def _write_to_self(self) -> None:
        """Nobody outside could be waiting to be let in."""

    def _heard(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None and not isinstance(error, ProcessDied):
            self._report(error)

    def _report(self, error: BaseException) -> None:
        if self.died is not None:
            self.died(error)


def _job(future: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        result = func(*args)
    except Exception as error:
        if not future.done():
            future.set_exception(error)
    else:
        if not future.done():
            future.set_result(result)


def _let_go(task: asyncio.Task[Any]) -> None:
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coroutine = task.get_coro()
    if coroutine is not None:
        with contextlib.suppress(BaseException):
            coroutine.close()
