"""Kill the worker's processes when its lease ends, also while the worker itself is stopped. Run as a script, by path.

    python -I -S guard.py

Reads lines from its standard input: `+ GROUP` and `- GROUP` for process groups that begin and have ended, `lease T`
for the instant, by the machine's monotonic clock, until which they may run. The end of the input is the worker's end.
"""

import contextlib
import os
import select
import signal
import time


class Guard:
    """What is guarded, and until when."""

    def __init__(self) -> None:
        self.groups: set[int] = set()
        self.until = float("inf")

    def obey(self, line: bytes) -> None:
        """Do what the worker says."""
        word, _, value = line.partition(b" ")
        if word == b"lease":
            self.until = float(value)
        elif word == b"+":
            self.groups.add(int(value))
        elif word == b"-":
            self.groups.discard(int(value))

    def kill(self) -> None:
        """End everything that is guarded."""
        groups, self.groups = self.groups, set()
        for group in groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)


def main() -> None:
    guard, rest = Guard(), b""
    while True:
        left = guard.until - time.monotonic()
        if left <= 0:
            guard.kill()
        waits = left if guard.groups and left != float("inf") else None
        if select.select([0], [], [], waits)[0]:
            data = os.read(0, 65536)
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                guard.obey(line)
    guard.kill()


if __name__ == "__main__":
    main()
