"""Several real ZooKeepers that replicate to each other, on loopback.

with ZooKeeperEnsemble(tmp_path) as ensemble:
    store = await open_store(f"zk:{ensemble.address}")
    ensemble.leader().kill()
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from magnetar.testing.processes import ProcessFailed, free_port
from magnetar.testing.zookeeper import EnsembleMember, ZooKeeperServer


class ZooKeeperEnsemble:
    """Started together, then each member on its own: `start`, `kill`, `send_signal`."""

    def __init__(self, directory: Path, *, size: int = 3, tick_ms: int = 500) -> None:
        places = [("127.0.0.1", free_port(), free_port()) for _ in range(size)]
        self.servers: list[ZooKeeperServer] = []
        for number in range(1, size + 1):
            own = directory / f"zookeeper-{number}"
            own.mkdir(parents=True, exist_ok=True)
            self.servers.append(
                ZooKeeperServer(own, tick_ms=tick_ms, port=free_port(), member=EnsembleMember(number, places))
            )

    @property
    def address(self) -> str:
        """`host:port,host:port,…` of all members."""
        return ",".join(server.address for server in self.servers)

    def start(self) -> None:
        """Start those that do not run, and wait until all serve."""
        for server in self.servers:
            if not server.alive():
                server.launch()
        for server in self.servers:
            server.wait_until_serving()

    def leader(self) -> ZooKeeperServer:
        """The member that leads.

        Raises:
            ProcessFailed: none does.
        """
        for server in self.servers:
            if server.alive() and server.mode() == "leader":
                return server
        raise ProcessFailed("no ZooKeeper leads")

    def followers(self) -> list[ZooKeeperServer]:
        """The members that follow."""
        return [server for server in self.servers if server.alive() and server.mode() == "follower"]

    def kill(self) -> None:
        """SIGKILL for all."""
        for server in self.servers:
            server.kill()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
