"""A real cluster on loopback: ZooKeepers, bookies, brokers, autorecovery and workers, each a process of its own.

with Cluster(tmp_path, ClusterPlan(bookies=4, brokers=2)) as cluster:
    client = pulsar.Client(cluster.service_url)
    cluster["bookie-1"].kill()
    cluster.cut("broker-0", "zookeeper-1")

Every process has a directory, a log and, for ever, a port of its own, so that it comes back where it was. It listens on
one loopback address and is known to all others by another, behind a proxy (`proxies.py`). Leaving ends all of them,
however the test ended.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from magnetar.testing.processes import MagnetarProcess, ProcessFailed, free_port
from magnetar.testing.proxies import Link, Proxies, Weather
from magnetar.testing.small_disk import SmallDisk
from magnetar.testing.zookeeper import EnsembleMember, ZooKeeperServer

MAGNETAR = str(Path(sys.executable).with_name("magnetar"))
COMMAND_TIMEOUT_S = 120.0
READY_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """What to start, and how."""

    zookeepers: int = 3
    bookies: int = 4
    brokers: int = 2
    autorecoveries: int = 1
    workers: int = 0
    ensemble: tuple[int, int, int] = (3, 2, 2)
    """E, Qw, Qa of namespaces that say nothing else."""
    tick_ms: int = 500
    session_timeout_s: float = 4.0
    small_disks: Mapping[int, int] = field(default_factory=dict)
    """Bookies, by number, whose disks have only so many bytes. Where mounting is not allowed they have whole ones."""
    domains: Mapping[int, str] = field(default_factory=dict)
    """Bookies, by number, and their failure domains."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Settings for all roles, as variables."""


class Node(Protocol):
    """One process of the cluster."""

    name: str
    log: Path

    @property
    def pid(self) -> int | None: ...
    def launch(self) -> None: ...
    def wait_until_ready(self, timeout_s: float = ...) -> object: ...
    def kill(self) -> object: ...
    def stop(self) -> object: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def alive(self) -> bool: ...


class RoleNode:
    """A role of the `magnetar` command."""

    def __init__(
        self,
        name: str,
        directory: Path,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        address: str,
        disk: SmallDisk | None = None,
    ) -> None:
        self.name = name
        self.directory = directory
        self.data = directory / "data"
        self.log = directory / f"{name}.log"
        self.address = address
        """`host:port` under which others know it; empty for a role that nobody asks."""
        self.disk = disk
        self._process = MagnetarProcess([*arguments, "--data", str(self.data)], self.log, environment)

    @property
    def urls(self) -> tuple[str, ...]:
        return self._process.urls

    @property
    def environment(self) -> dict[str, str]:
        """Variables it is started with; a change counts from the next start on."""
        return self._process.environment

    @property
    def pid(self) -> int | None:
        return self._process.pid if self.alive() else None

    @property
    def bookie_id(self) -> str:
        """What a bookie is called in metadata, once it has started for the first time."""
        return str(json.loads((self.data / "MAGNETAR").read_text())["id"])

    def start(self) -> None:
        """Launch and wait."""
        self.launch()
        self.wait_until_ready()

    def launch(self) -> None:
        self._process.launch()

    def wait_until_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        self._process.wait_until_ready(timeout_s)

    def kill(self) -> int | None:
        return self._process.kill() if self.alive() else None

    def stop(self) -> int | None:
        return self._process.stop() if self.alive() else None

    def pause(self) -> None:
        self._process.pause()

    def resume(self) -> None:
        self._process.resume()

    def alive(self) -> bool:
        return self._process.alive()

    def exit_status(self) -> int | None:
        """Of a process that has ended; None while it runs, or before its first start."""
        return self._process.exit_status()

    def rss_bytes(self) -> int:
        """Its memory."""
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        return 0


class KeeperNode:
    """A ZooKeeper."""

    def __init__(self, name: str, server: ZooKeeperServer, address: str) -> None:
        self.name = name
        self.server = server
        self.address = address
        self.log = server.log

    @property
    def pid(self) -> int | None:
        return self.server.pid

    def start(self) -> None:
        """Launch and wait."""
        self.launch()
        self.wait_until_ready()

    def launch(self) -> None:
        self.server.launch()

    def wait_until_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        self.server.wait_until_serving(timeout_s)

    def kill(self) -> None:
        self.server.kill()

    def stop(self) -> None:
        self.server.stop()

    def pause(self) -> None:
        import signal

        self.server.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        import signal

        self.server.send_signal(signal.SIGCONT)

    def alive(self) -> bool:
        return self.server.alive()


class Cluster:
    """Starts on entering, all together; on leaving, everything is killed."""

    def __init__(self, directory: Path, plan: ClusterPlan | None = None) -> None:
        self.directory = directory
        self.plan = plan or ClusterPlan()
        self._net = random.SystemRandom().randint(2, 250)
        self._hosts = 0
        self._resources = ExitStack()
        self._proxies = Proxies(self._processes)
        self.keepers: list[KeeperNode] = []
        self.bookies: list[RoleNode] = []
        self.brokers: list[RoleNode] = []
        self.autorecoveries: list[RoleNode] = []
        self.workers: list[RoleNode] = []

    # What there is.

    @property
    def nodes(self) -> list[KeeperNode | RoleNode]:
        return [*self.keepers, *self.bookies, *self.brokers, *self.autorecoveries, *self.workers]

    @property
    def roles(self) -> list[RoleNode]:
        return [*self.bookies, *self.brokers, *self.autorecoveries, *self.workers]

    def __getitem__(self, name: str) -> KeeperNode | RoleNode:
        return next(node for node in self.nodes if node.name == name)

    @property
    def metadata_store(self) -> str:
        """Its URL, as the processes of the cluster reach it."""
        return self._store(keeper.address for keeper in self.keepers)

    @property
    def metadata_store_direct(self) -> str:
        """Its URL past the proxies, for whoever checks."""
        return self._store(keeper.server.address for keeper in self.keepers)

    @property
    def service_url(self) -> str:
        """Of all brokers."""
        return "pulsar://" + ",".join(broker.address for broker in self.brokers)

    def web_url(self) -> str:
        """The REST API of a broker that runs."""
        return next(broker.urls[1] for broker in self.brokers if broker.alive() and broker.urls)

    # Starting and stopping.

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def start(self, nodes: Sequence[Node]) -> None:
        """Start several at once and wait until all are ready."""
        for node in nodes:
            node.launch()
        with ThreadPoolExecutor(max(1, len(nodes))) as pool:
            list(pool.map(lambda node: node.wait_until_ready(READY_TIMEOUT_S), nodes))

    def kill(self, nodes: Sequence[Node]) -> None:
        """SIGKILL to all of them, as nearly at once as it goes."""
        with ThreadPoolExecutor(max(1, len(nodes))) as pool:
            list(pool.map(lambda node: node.kill(), nodes))

    def add_bookie(self, *, small_disk_bytes: int = 0) -> RoleNode:
        """One more, started."""
        number = len(self.bookies)
        node = self._bookie(number, small_disk_bytes)
        node.start()
        return node

    def command(self, *words: str) -> str:
        """Run `magnetar WORDS --metadata-store …` and return what it prints.

        Raises:
            ProcessFailed: it ended with another status than 0.
        """
        ended = subprocess.run(
            [MAGNETAR, *words, "--metadata-store", self.metadata_store_direct],
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
            env={**os.environ, **self.plan.environment},
        )
        if ended.returncode:
            raise ProcessFailed(f"`magnetar {' '.join(words)}` ended with {ended.returncode}: {ended.stderr}")
        return ended.stdout

    def command_json(self, *words: str) -> Any:
        """The same, with --json, read."""
        return json.loads(self.command(*words, "--json"))

    # The network.

    def cut(self, source: str, target: str, *, one_way: bool = False) -> None:
        """Nothing that `source` sends reaches `target`, nor back; the back way stays open with `one_way`."""
        self.spoil(source, target, Weather(cut=True), one_way=one_way)

    def spoil(self, source: str, target: str, weather: Weather, *, one_way: bool = False) -> None:
        """Change how the link fares."""
        self._proxies.spoil(Link(source, target), weather)
        if not one_way:
            self._proxies.spoil(Link(target, source), weather)

    def mend(self, source: str, target: str) -> None:
        """Make the link between the two whole again, both ways."""
        self._proxies.clear(Link(source, target), Link(target, source))

    def mend_all(self) -> None:
        """Make every link whole again."""
        self._proxies.clear()

    def reset(self, one: str, other: str) -> None:
        """Break the connections between the two."""
        self._proxies.reset(one, other)

    # How it is built.

    def _start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._resources.enter_context(self._proxies)
        self._make_keepers()
        self.start(self.keepers)
        self.command("metadata", "init", "--cluster", "chaos")
        mounts = bool(self.plan.small_disks) and SmallDisk.allowed(self.directory)
        for number in range(self.plan.bookies):
            self._bookie(number, self.plan.small_disks.get(number, 0) if mounts else 0)
        quorums = zip(("--ensemble", "--write-quorum", "--ack-quorum"), self.plan.ensemble, strict=True)
        words = [word for option, number in quorums for word in (option, str(number))]
        for number in range(self.plan.brokers):
            self.brokers.append(
                self._role("broker", number, [*words, "--no-functions"], ports=("--port", "--web-port"))
            )
        for number in range(self.plan.autorecoveries):
            self.autorecoveries.append(self._role("autorecovery", number, ["--port", "0"], ports=()))
        for number in range(self.plan.workers):
            self.workers.append(self._role("worker", number, [], ports=("--web-port",)))
        self.start(self.bookies)
        self.start([*self.brokers, *self.autorecoveries, *self.workers])

    def _make_keepers(self) -> None:
        count = self.plan.zookeepers
        places = []
        for number in range(1, count + 1):
            inside, outside = self._host()
            ports = [_free_port_on(inside, outside) for _ in range(3)]
            for port in ports:
                self._proxies.listen(f"zookeeper-{number}", (outside, port), (inside, port))
            places.append((inside, outside, ports))
        for number, (inside, outside, ports) in enumerate(places, 1):
            servers = [
                (own if each == number else proxied, peers, elections)
                for each, (own, proxied, (_, peers, elections)) in enumerate(places, 1)
            ]
            directory = self.directory / f"zookeeper-{number}"
            directory.mkdir()
            server = ZooKeeperServer(
                directory,
                tick_ms=self.plan.tick_ms,
                host=inside,
                port=ports[0],
                member=EnsembleMember(number, servers) if count > 1 else None,
            )
            self.keepers.append(KeeperNode(f"zookeeper-{number}", server, f"{outside}:{ports[0]}"))

    def _bookie(self, number: int, small_disk_bytes: int) -> RoleNode:
        node = self._role("bookie", number, [], ports=("--port",), small_disk_bytes=small_disk_bytes)
        if number in self.plan.domains:
            node.environment["MAGNETAR_BOOKIE__DOMAIN"] = self.plan.domains[number]
        self.bookies.append(node)
        return node

    def _role(
        self, role: str, number: int, words: Sequence[str], ports: Sequence[str], small_disk_bytes: int = 0
    ) -> RoleNode:
        name = f"{role}-{number}"
        arguments = [role, "--metadata-store", self.metadata_store, *words]
        address = ""
        if ports:
            inside, outside = self._host()
            arguments += ["--host", inside, "--advertised-host", outside]
            for option in ports:
                port = _free_port_on(inside, outside)
                self._proxies.listen(name, (outside, port), (inside, port))
                arguments += [option, str(port)]
                address = address or f"{outside}:{port}"
        directory = self.directory / name
        directory.mkdir()
        disk = None
        if small_disk_bytes:
            disk = SmallDisk(directory / "data", small_disk_bytes)
            disk.mount()
            self._resources.callback(disk.unmount)
        return RoleNode(name, directory, arguments, self.plan.environment, address, disk)

    def _host(self) -> tuple[str, str]:
        """Two loopback addresses for one machine: where it listens, and where its proxies do."""
        self._hosts += 1
        return f"127.{self._net}.0.{self._hosts}", f"127.{self._net}.1.{self._hosts}"

    def _store(self, addresses: Iterable[str]) -> str:
        return f"zk:{','.join(addresses)}?session_timeout_s={self.plan.session_timeout_s:g}"

    def _processes(self) -> list[tuple[str, int]]:
        return [(node.name, pid) for node in self.nodes if (pid := node.pid) is not None]

    def _end(self) -> None:
        try:
            self.kill(self.nodes)
        finally:
            self._resources.close()


def _free_port_on(*hosts: str) -> int:
    """A port that is free on all of them."""
    while True:
        port = free_port(hosts[0])
        if all(_is_free(host, port) for host in hosts[1:]):
            return port


def _is_free(host: str, port: int) -> bool:
    import socket

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def eventually(what: str, condition: Callable[[], bool], *, within_s: float, every_s: float = 0.2) -> None:
    """Wait until `condition` holds.

    Raises:
        AssertionError: it did not, in time.
    """
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s:.0f} s: {what}"
        time.sleep(every_s)
