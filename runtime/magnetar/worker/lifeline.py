"""Become another program that dies with the worker. Run as a script, by path, before anything else is loaded.

    python -I -S lifeline.py WORKER_PID PROGRAM ARGUMENT...

The kernel's parent-death signal outlives exec, so that the program need not know; nothing is left running when the
worker is killed. Setting it here, in the child's own start, needs no code between fork and exec.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        sys.exit(f"prctl failed: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the worker ended before its child began")
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
