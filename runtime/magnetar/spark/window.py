"""The process of one window job: `python -m magnetar.spark.window --spec FILE`, started by the worker.

Says on standard output, a JSON object a line: `{"ready": true, "control": {"0": PORT}}` once the query runs, and
`{"ended": true}` once its inputs have ended and the last windows are out. Exit status 78 where trying again as it is
configured is no use, 1 where the query failed: then it goes on from its checkpoint in the next process.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path

from magnetar.environment.logs import configure, get_logger
from magnetar.functions.errors import PackageError
from magnetar.spark.control import ControlServer
from magnetar.spark.errors import JavaMissing, WindowUnsupported
from magnetar.spark.window_job import JobSpec, WindowJob

EX_CONFIG = 78  # Source: sysexits.h.

log = get_logger("magnetar.spark")


def main(arguments: list[str] | None = None) -> int:
    """Run a window job to its end; returns the exit status."""
    parser = argparse.ArgumentParser(prog="magnetar.spark.window")
    parser.add_argument("--spec", type=Path, required=True)
    options = parser.parse_args(arguments)
    configure()
    try:
        job = WindowJob(JobSpec.read(options.spec), on_end=lambda: say({"ended": True}))
        server = ControlServer(job.status)
        port = server.start()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: job.stop())
        try:
            job.run(ready=lambda: say({"ready": True, "control": {"0": port}}))
        finally:
            server.stop()
    except (JavaMissing, WindowUnsupported, PackageError) as error:
        log.error("window.impossible", reason=str(error))
        return EX_CONFIG
    except Exception as error:
        log.exception("window.failed", reason=str(error).splitlines()[0] if str(error) else repr(error))
        return 1
    return 0


def say(message: dict[str, object]) -> None:
    """Tell the worker."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
