"""`make cluster`: three ZooKeepers, four bookies, two brokers and a worker on this machine, until Ctrl-C.

    python -m magnetar.cli.local_cluster [DIRECTORY]

Everything listens on 127.0.0.1, on the usual port where it is free. Data and logs lie below DIRECTORY (out/cluster),
so that a cluster started there again goes on where it stopped.
"""

from __future__ import annotations

import json
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

from magnetar.testing.commands import make_cluster
from magnetar.testing.processes import MagnetarProcess, ProcessFailed, free_port
from magnetar.testing.zookeeper import EnsembleMember, ZooKeeperServer

Each = TypeVar("Each")

KEEPERS = 3
BOOKIES = 4
BROKERS = 2
CLUSTER = "local"
PORTS_FILE = "ports.json"
QUORUMS = ("--ensemble", "3", "--write-quorum", "3", "--ack-quorum", "2")


def main(arguments: Sequence[str]) -> int:
    """Run the cluster until SIGINT or SIGTERM. Returns the exit status."""
    directory = Path(arguments[0] if arguments else "out/cluster").absolute()
    directory.mkdir(parents=True, exist_ok=True)
    told = _Told()
    try:
        with ExitStack() as running:
            _Starter(directory, running, told).start()
            told.wait()
            print("\nstopping: worker, brokers, bookies, ZooKeepers", flush=True)
    except ProcessFailed as error:
        print(f"local cluster: {error}", file=sys.stderr)
        return 1
    except _CalledOffError:
        print("\ncalled off", file=sys.stderr)
    return 0


class _Told:
    """Whether a signal to end has come. Its handler does nothing that a second signal could not interrupt."""

    _SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.come = False
        for number in self._SIGNALS:
            signal.signal(number, self._hear)

    def wait(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, self._SIGNALS)
        if not self.come:
            signal.sigwait(self._SIGNALS)

    def _hear(self, number: int, frame: object) -> None:
        self.come = True


class _CalledOffError(Exception):
    """Told to stop before all was up."""


class _Starter:
    def __init__(self, directory: Path, running: ExitStack, told: _Told) -> None:
        self._directory = directory
        self._running = running
        self._told = told
        self._ports = _Ports(directory / PORTS_FILE)

    def start(self) -> None:
        """Start everything, in order, and say where it is. Whatever was started is stopped on leaving `running`."""
        keepers = self._keepers()
        store = f"zk:{','.join(keeper.address for keeper in keepers)}/{CLUSTER}"
        make_cluster(store, CLUSTER)
        bookies = [
            self._role("bookie", number, store, [], ("--port", 3181 + number)) for number in range(BOOKIES)
        ]
        self._all_ready(bookies)
        brokers = [
            self._role(
                "broker",
                number,
                store,
                ["--no-functions", *QUORUMS],
                ("--port", 6650 + number),
                ("--web-port", 8080 + number),
            )
            for number in range(BROKERS)
        ]
        self._all_ready(brokers)
        worker = self._role("worker", 0, store, [], ("--web-port", 6750))
        self._all_ready([worker])
        self._ports.keep()
        self._tell(keepers, store, bookies, brokers, worker)

    def _keepers(self) -> list[ZooKeeperServer]:
        host = "127.0.0.1"
        servers = [
            (host, self._ports.of(f"zk-{number}-peer", 0), self._ports.of(f"zk-{number}-election", 0))
            for number in range(1, KEEPERS + 1)
        ]
        keepers = []
        for number in range(1, KEEPERS + 1):
            place = self._directory / f"zookeeper-{number}"
            place.mkdir(exist_ok=True)
            keeper = ZooKeeperServer(
                place,
                tick_ms=500,
                port=self._ports.of(f"zookeeper-{number}", 2180 + number),
                member=EnsembleMember(number, servers),
            )
            self._running.callback(keeper.stop)
            keeper.launch()
            keepers.append(keeper)
        self._together(keepers, lambda keeper: keeper.wait_until_serving())
        return keepers

    def _role(
        self, role: str, number: int, store: str, words: Sequence[str], *ports: tuple[str, int]
    ) -> MagnetarProcess:
        name = f"{role}-{number}"
        place = self._directory / name
        place.mkdir(exist_ok=True)
        arguments = [role, "--metadata-store", store, "--data", str(place / "data"), *words]
        for option, usual in ports:
            arguments += [option, str(self._ports.of(f"{name}{option}", usual))]
        # They play machines, or each would be warned of that all copies share one.
        machine = {"MAGNETAR_BOOKIE__DOMAIN": name} if role == "bookie" else {}
        process = MagnetarProcess(arguments, place / f"{role}.log", machine)
        process.launch()
        self._running.push(process)
        return process

    def _all_ready(self, processes: Sequence[MagnetarProcess]) -> None:
        self._together(processes, lambda process: process.wait_until_ready())

    def _together(self, each: Sequence[Each], wait: Callable[[Each], object]) -> None:
        with ThreadPoolExecutor(len(each)) as pool:
            list(pool.map(wait, each))
        if self._told.come:
            raise _CalledOffError

    def _tell(
        self,
        keepers: Sequence[ZooKeeperServer],
        store: str,
        bookies: Sequence[MagnetarProcess],
        brokers: Sequence[MagnetarProcess],
        worker: MagnetarProcess,
    ) -> None:
        service = "pulsar://" + ",".join(each.service_url.removeprefix("pulsar://") for each in brokers)
        print(f"data and logs     {self._directory}")
        print(f"metadata store    {store}")
        for keeper in keepers:
            print(f"zookeeper         {keeper.address}")
        for bookie in bookies:
            print(f"bookie            {bookie.urls[0]}")
        for broker in brokers:
            print(f"broker            {' '.join(broker.urls)}")
        print(f"worker            {worker.urls[0]}")
        print()
        print(f"clients           {service}")
        print(f"commands          magnetar --admin-url {brokers[0].web_url} --service-url {service} ...")
        print(f"operators         magnetar bookie list --metadata-store {store}")
        print("\nCtrl-C stops it all.", flush=True)


class _Ports:
    """Ports that are the same at the next start, since ledgers and clients remember them."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._ports: dict[str, int] = json.loads(file.read_text()) if file.exists() else {}

    def of(self, name: str, usual: int) -> int:
        """The one it had, or the usual one if nobody listens there, or a free one."""
        known = self._ports.get(name)
        if known is None:
            taken = set(self._ports.values())
            known = usual if usual and usual not in taken and _is_free(usual) else free_port()
            self._ports[name] = known
        return known

    def keep(self) -> None:
        self._file.write_text(json.dumps(self._ports, indent=1) + "\n")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
