"""Which process drives the query: Spark's helper processes are started by its JVM and do not know."""

from __future__ import annotations

import os

VARIABLE = "MAGNETAR_SPARK_DRIVER"


def announce_driver() -> None:
    """This process is the driver. Call it before the session is started."""
    os.environ[VARIABLE] = str(os.getpid())


def driver_process() -> int | None:
    """The driver's process id; None where nobody announced it."""
    text = os.environ.get(VARIABLE)
    return int(text) if text else None
