"""The peers, each a server of its own below one directory, started once and stopped (SIGSTOP) while another is measured.

All of them listen on 127.0.0.1 and free ports. A peer whose programs are missing raises `PeerMissing`, which says what to
install: the rest is measured without it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from magnetar.testing.processes import MagnetarProcess, free_port

HOST = "127.0.0.1"
READY_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0
CACHE = Path(".cache/peers")
JAVA_OPENS = tuple(
    f"--add-opens={package}=ALL-UNNAMED"
    for package in (
        "java.base/java.nio",
        "java.base/java.util.zip",
        "java.base/jdk.internal.misc",
        "java.base/sun.net",
        "java.management/sun.management",
        "jdk.management/com.sun.management.internal",
    )
)
LOG4J = """status=warn
rootLogger.level={level}
rootLogger.appenderRef.out.ref=out
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d %p %c{{1}} %m%n
"""
"""Without a configuration log4j prints errors only, and pulsar-perf's figures are log lines."""


class PeerMissing(Exception):
    """A program that the peer needs is not on this machine."""


class Peer:
    """A server that was started by us."""

    name: str
    durability: str
    """What a receipt means."""
    service_url: str

    def __init__(self, process: subprocess.Popen[bytes], *others: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._others = others

    @property
    def pid(self) -> int:
        """Of the root of its processes."""
        return self._process.pid

    def pause(self) -> None:
        """Let it use nothing while another is measured."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """SIGTERM, and SIGKILL for what does not end by it."""
        self.resume()
        for process in (self._process, *self._others):
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _until(self, ready: Callable[[], bool], log: Path) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            if ready():
                return
            time.sleep(0.1)
        self.stop()
        raise PeerMissing(
            f"{self.name} did not get ready; its log ends:\n{log.read_text(errors='replace')[-1500:]}"
        )


class Magnetar(Peer):
    """Ours, as `magnetar standalone` starts it."""

    name = "Magnetar"
    durability = "fsync"

    def __init__(self, directory: Path) -> None:
        place = directory / "magnetar"
        place.mkdir()
        self._server = MagnetarProcess.standalone(place).start()
        self.service_url = self._server.service_url

    @property
    def pid(self) -> int:
        return self._server.pid

    def pause(self) -> None:
        self._server.pause()

    def resume(self) -> None:
        self._server.resume()

    def stop(self) -> None:
        self.resume()
        self._server.stop()


class ApachePulsar(Peer):
    """Its standalone with one bookie, without the functions worker. Its journal syncs, as a bookie's own default is."""

    name = "Apache Pulsar"
    durability = "fsync"

    def __init__(self, directory: Path) -> None:
        place = directory / "pulsar"
        place.mkdir()
        port, web_port = free_port(), free_port()
        configuration = {
            "clusterName": "standalone",
            "brokerServicePort": port,
            "webServicePort": web_port,
            "bindAddress": HOST,
            "advertisedAddress": HOST,
            "allowLoopback": "true",
            "managedLedgerDefaultEnsembleSize": 1,
            "managedLedgerDefaultWriteQuorum": 1,
            "managedLedgerDefaultAckQuorum": 1,
            "journalSyncData": "true",
            "loadBalancerEnabled": "false",
        }
        (place / "standalone.conf").write_text(
            "".join(f"{key}={value}\n" for key, value in configuration.items())
        )
        java = java_command(place, "warn", "-Xms2g", "-Xmx2g", "-XX:MaxDirectMemorySize=4g", "-XX:+UseZGC")
        starter = "org.apache.pulsar.PulsarStandaloneStarter"
        options = ("--config", "standalone.conf", "--no-functions-worker", "--no-stream-storage")
        places = (
            "--metadata-dir",
            "metadata",
            "--bookkeeper-dir",
            "bookie",
            "--bookkeeper-port",
            str(free_port()),
        )
        super().__init__(spawn([*java, starter, *options, *places], place / "log", cwd=place))
        self.service_url = f"pulsar://{HOST}:{port}"
        health = f"http://{HOST}:{web_port}/admin/v2/brokers/health"
        self._until(lambda: _answers(health), place / "log")


class Redis(Peer):
    """Streams, `appendfsync always`: a group of pipelined commands is synced at once."""

    name = "Redis streams"
    durability = "fsync"

    def __init__(self, directory: Path) -> None:
        place = directory / "redis"
        place.mkdir()
        self.port = free_port()
        program = find("redis-server", "apt-get install redis-server")
        options = ["--bind", HOST, "--port", str(self.port), "--dir", str(place), "--save", ""]
        options += ["--appendonly", "yes", "--appendfsync", "always"]
        super().__init__(spawn([program, *options], place / "log"))
        self.service_url = f"redis://{HOST}:{self.port}"
        self._until(lambda: _listens(self.port), place / "log")


class RabbitMQ(Peer):
    """Streams. They are confirmed when written, not when synced: the operating system's cache holds them."""

    name = "RabbitMQ streams"
    durability = "OS cache"

    def __init__(self, directory: Path) -> None:
        place = directory / "rabbitmq"
        place.mkdir()
        server = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
        if not server.exists():
            raise PeerMissing("rabbitmq-server is missing: apt-get install rabbitmq-server")
        self.port, mapper_port = free_port(), free_port()
        (place / "plugins").write_text("[rabbitmq_stream].\n")
        (place / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = {HOST}:{free_port()}\nstream.listeners.tcp.1 = {HOST}:{self.port}\n"
            f"stream.advertised_host = {HOST}\nstream.advertised_port = {self.port}\n"
            "loopback_users = none\ndisk_free_limit.absolute = 50MB\n"
        )
        variables = {
            **os.environ,
            "HOME": str(place),
            "ERL_EPMD_ADDRESS": HOST,
            "ERL_EPMD_PORT": str(mapper_port),
            "RABBITMQ_NODENAME": "bench@localhost",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_CONFIG_FILE": str(place / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(place / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(place / "data"),
            "RABBITMQ_LOG_BASE": str(place / "logs"),
        }
        # The name server of Erlang outlives a node that starts it: ours is our own child, and ends with the node.
        mapper = spawn(
            [find("epmd", "apt-get install erlang-base"), "-port", str(mapper_port)],
            place / "epmd",
            env=variables,
        )
        super().__init__(spawn([str(server)], place / "log", env=variables), mapper)
        self.service_url = f"rabbitmq-stream://{HOST}:{self.port}"
        self._until(lambda: _listens(self.port), place / "log")

    def pause(self) -> None:
        """Its virtual machine is a child of a shell."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGCONT)

    def stop(self) -> None:
        self.resume()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        super().stop()


def java_command(place: Path, level: str, *options: str) -> list[str]:
    """The start of a command that runs a class of Apache Pulsar's. Raises PeerMissing."""
    logging = place / f"log4j2-{level}.properties"
    logging.write_text(LOG4J.format(level=level))
    return [
        find("java", "install a JDK 17"),
        *options,
        *JAVA_OPENS,
        "-Dio.netty.tryReflectionSetAccessible=true",
        f"-Dlog4j2.configurationFile={logging}",
        "-cp",
        f"{jars()}/*",
    ]


def jars() -> Path:
    """Where Apache Pulsar's jars are; Maven fetches them once."""
    place, done = CACHE.absolute() / "jars", CACHE.absolute() / "fetched"
    pom = Path(__file__).with_name("pom.xml")
    if not done.exists() or done.stat().st_mtime < pom.stat().st_mtime:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        maven = find("mvn", "apt-get install maven")
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={place}"]
        fetched = subprocess.run([maven, "-q", "-B", "-f", str(pom), *goal], capture_output=True, text=True)
        if fetched.returncode:
            raise PeerMissing(f"Maven could not fetch Apache Pulsar:\n{fetched.stdout[-1500:]}")
        done.touch()
    return place


def find(program: str, advice: str) -> str:
    """The path of a program. Raises PeerMissing."""
    found = shutil.which(program)
    if found is None:
        raise PeerMissing(f"{program} is missing: {advice}")
    return found


def spawn(
    command: list[str], log: Path, *, cwd: Path | None = None, env: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """A child in a process group of its own, so that Ctrl-C at a terminal does not end it before it is stopped."""
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            cwd=cwd,
            env=env,
            start_new_session=True,
        )


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def _listens(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True
