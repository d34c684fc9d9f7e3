"""Running one `magnetar` command to its end, as a user would."""

from __future__ import annotations

import os
import subprocess
import sys

from magnetar.testing.processes import ProcessFailed

TIMEOUT_S = 120.0


def run_magnetar(*words: object, environment: dict[str, str] | None = None) -> str:
    """What the command writes to standard output.

    Raises:
        ProcessFailed: it ended with another status than 0; the message holds what it complained of.
    """
    ended = subprocess.run(
        [sys.executable, "-m", "magnetar.cli", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, **(environment or {})},
    )
    if ended.returncode:
        raise ProcessFailed(
            f"magnetar {' '.join(map(str, words))}: status {ended.returncode}\n{ended.stdout}{ended.stderr}"
        )
    return ended.stdout


def make_cluster(metadata_store: str, name: str = "test") -> None:
    """`magnetar metadata init`: what every cluster begins with."""
    run_magnetar("metadata", "init", "--metadata-store", metadata_store, "--cluster", name)
