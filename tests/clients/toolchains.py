"""What the tours of other languages' clients need: found, fetched once below .cache/clients, or said to be missing."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CACHE = Path(__file__).parents[2] / ".cache" / "clients"
FETCH_TIMEOUT_S = 300
WITH_FETCHING = pytest.mark.timeout(FETCH_TIMEOUT_S + 300)
"""For tests that may be the first to need something: a slow network leaves them out, and does not fail them."""
SAID_AT_MOST = 500


def require(*programs: str) -> None:
    """Leave the test out where a program is not there, and say which."""
    missing = [each for each in programs if shutil.which(each) is None]
    if missing:
        pytest.skip(f"needs {' and '.join(missing)}, which this machine does not have")


def java_class_path() -> str:
    """Of pulsar-admin, pulsar-perf and the Java client, as tests/clients/java/pom.xml names them."""
    require("java", "mvn")

    def fetch(into: Path) -> None:
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={into}", "-DincludeScope=runtime"]
        _run("Maven", ["mvn", "-q", "-B", "-ntp", "-f", str(HERE / "java" / "pom.xml"), *goal])

    return f"{_kept('java', [HERE / 'java' / 'pom.xml'], fetch)}/*"


def go_tour() -> Path:
    """The tour in Go, built: modules at the versions and sums of go.mod and go.sum."""
    require("go")
    sources = sorted((HERE / "go").iterdir())

    def build(into: Path) -> None:
        _run("Go", ["go", "build", "-mod=readonly", "-o", str(into / "tour"), "."], cwd=HERE / "go")

    return _kept("go", sources, build) / "tour"


def node_modules() -> Path:
    """The directory of the tour in JavaScript with the client installed beside it."""
    require("node", "npm")
    sources = sorted((HERE / "node").iterdir())

    def install(into: Path) -> None:
        for each in sources:
            shutil.copy(each, into)
        _run("npm", ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error"], cwd=into)

    return _kept("node", sources, install)


def java(class_path: str, *arguments: str) -> list[str]:
    """A command line: short runs are not worth the second compiler."""
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
    return ["java", "-XX:TieredStopAtLevel=1", "-Xmx512m", quiet, "-cp", class_path, *arguments]


def _run(what: str, command: list[str], cwd: Path | None = None) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=FETCH_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"{what} did not bring what is needed within {FETCH_TIMEOUT_S} s")
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()
        fatal = [line for line in lines if "fatal" in line.lower()]
        told = "; ".join(fatal or lines[-3:])[:SAID_AT_MOST]
        pytest.skip(f"{what} could not bring what is needed: {told}")


def _kept(name: str, sources: list[Path], make: Callable[[Path], None]) -> Path:
    """The directory that `make` filled from `sources`, once for each state of these."""
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    directory = CACHE / f"{name}-{digest.hexdigest()[:12]}"
    with _alone(name):
        if not directory.exists():
            unfinished = CACHE / f"{name}.unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            make(unfinished)
            unfinished.rename(directory)
    return directory


@contextmanager
def _alone(name: str) -> Iterator[None]:
    """Other processes of the same test run wait."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
