"""A serving process uses the same memory again."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import resource, sys, threading
from magnetar.environment.heap import keep_freed_memory

if sys.argv[1] == "kept" and not keep_freed_memory():
    sys.exit("no glibc")

def burst():
    return [b"x" * (256 << 10) for _ in range(64)]

def in_a_thread():
    thread = threading.Thread(target=burst)
    thread.start()
    thread.join()

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

burst()
in_a_thread()
before = faults()
for _ in range(5):
    burst()
    in_a_thread()
print(faults() - before)
"""


def faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_blocks_that_come_and_go_cost_no_new_pages() -> None:
    assert faults("kept") < 1000, "10 bursts of 4096 pages each"
    assert faults("given back") > 10_000, "the allocator does so by itself now: this module can go"
