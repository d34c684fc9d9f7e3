"""Running a role: its loop, its signals, its ready line, and its end."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, TypeAlias

import uvloop

from magnetar.bookie.errors import BookieError
from magnetar.cli.ending import exit_status
from magnetar.cli.errors import CannotServe
from magnetar.environment import flight_recorder
from magnetar.environment.errors import DiskError
from magnetar.environment.gc_tuning import hasten_thread_switches, settle
from magnetar.environment.heap import keep_freed_memory
from magnetar.environment.logs import get_logger
from magnetar.metadata.errors import MetadataError
from magnetar.metrics.process import process_age_s

if TYPE_CHECKING:
    from magnetar.cli.settings.model import PlatformSettings

Role: TypeAlias = "Callable[[PlatformSettings], AbstractAsyncContextManager[Sequence[str]]]"
"""Starts on entering, gives the URLs it serves, and drains on leaving."""

STOP_GRACE_S = 30.0
"""What a stop may take beyond the time to drain: functions end, bookies flush."""
EXIT_HUNG = 75  # EX_TEMPFAIL: the next start replays what this one could not finish.

_log = get_logger("magnetar.cli")


def serve(role: Role, settings: PlatformSettings) -> int:
    """Serve until SIGTERM or SIGINT, then drain and return 0, or what `end_process` was told.

    A second signal, or a drain that hangs, ends the process at once: what was acknowledged is safe then too, the
    next start only has more to replay. SIGUSR2 writes the flight recorder's facts to standard error.

    Raises:
        CannotServe: it could not start; the text says why.
    """
    _allow_many_files()
    hasten_thread_switches()
    keep_freed_memory()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(role, settings))
    except CannotServe:
        raise
    except BaseException:
        flight_recorder.dump()
        raise


async def _serve(role: Role, settings: PlatformSettings) -> int:
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop, number, told, settings.drain_s)
    loop.add_signal_handler(signal.SIGUSR2, flight_recorder.dump)
    serving = role(settings)
    try:
        urls = await _started(serving, told)
        if urls is None:
            _log.info("server.start_called_off")
            return exit_status() or 128 + signal.SIGTERM
    except (CannotServe, MetadataError, BookieError, DiskError) as error:
        raise CannotServe(str(error)) from error
    except OSError as error:
        place = f"{error.filename} cannot be used: " if error.filename else ""
        raise CannotServe(f"{place}{error.strerror or error}") from error
    try:
        settle()
        if not told.is_set():
            _announce(urls)
            await told.wait()
    finally:
        await serving.__aexit__(None, None, None)
    _log.info("server.stopped")
    return exit_status()


async def _started(
    serving: AbstractAsyncContextManager[Sequence[str]], told: asyncio.Event
) -> Sequence[str] | None:
    """The URLs, or None if it was told to stop before it served: it may be waiting for others."""
    starting = asyncio.ensure_future(serving.__aenter__())
    waiting = asyncio.ensure_future(told.wait())
    await asyncio.wait((starting, waiting), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if not starting.done():
        starting.cancel()
        await asyncio.wait((starting,))
        if starting.cancelled():
            return None
    return starting.result()


def _stop(number: signal.Signals, told: asyncio.Event, drain_s: float) -> None:
    if told.is_set():
        _log.warning("server.stopped_at_once", signal=number.name)
        os._exit(128 + number)
    _log.info("server.told_to_stop", signal=number.name)
    told.set()
    asyncio.get_running_loop().call_later(drain_s + STOP_GRACE_S, _give_up)


def _give_up() -> None:
    _log.error("server.drain_hung")
    flight_recorder.dump(last=200)
    os._exit(EXIT_HUNG)


def _announce(urls: Sequence[str]) -> None:
    """The one line by which whoever has started this process knows that it serves."""
    print(f"magnetar ready: {' '.join(urls)} ({process_age_s():.2f} s)", flush=True)


def _allow_many_files() -> None:
    """A connection is a file: use all that the system grants."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError) as error:
            _log.warning("files.limit_kept", limit=soft, reason=str(error))
