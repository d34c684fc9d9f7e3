"""What happened in a run, as it happened: printed, and kept in a file beside the logs."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path


class Story:
    """Lines with the seconds since the beginning and the time of day, which the processes' logs have too."""

    def __init__(self, path: Path, *, echo: bool = True) -> None:
        self._path = path
        self._echo = echo
        self._began = time.monotonic()
        self._lock = threading.Lock()

    @property
    def now_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    def tell(self, text: str) -> None:
        line = f"{self.now_s:8.1f} s  {time.strftime('%H:%M:%S', time.gmtime())}  {text}"
        with self._lock:
            with self._path.open("a") as file:
                file.write(line + "\n")
            if self._echo:
                sys.stdout.write(line + "\n")
                sys.stdout.flush()
