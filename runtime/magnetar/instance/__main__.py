"""`python -m magnetar.instance --spec FILE`: the host of one component's instances.

Exit status: 0 after SIGTERM; 78 where only another package or config can help, the reason on the last line.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from magnetar.environment.clock import SystemClock
from magnetar.environment.logs import configure
from magnetar.instance.errors import SpecUnusable, UserCodeRefused
from magnetar.instance.host import Host
from magnetar.instance.spec import Spec

EXIT_CONFIG = 78


def main(arguments: list[str] | None = None) -> int:
    """Run a host until it is told to stop; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m magnetar.instance", description="Run a component's instances."
    )
    parser.add_argument("--spec", type=Path, required=True, help="the JSON file that says what to run")
    parser.add_argument("--log-level", default="INFO")
    options = parser.parse_args(arguments)
    configure(options.log_level)
    try:
        spec = Spec.read(options.spec)
        run(_run(spec))
    except (SpecUnusable, UserCodeRefused) as error:
        if isinstance(error, UserCodeRefused) and error.traceback:
            sys.stderr.write(error.traceback)
        sys.stderr.write(f"{error}\n")
        return EXIT_CONFIG
    return 0


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run on uvloop where there is one, which costs less for each frame."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)


async def _run(spec: Spec) -> None:
    await Host(spec, SystemClock()).run()


if __name__ == "__main__":
    sys.exit(main())
