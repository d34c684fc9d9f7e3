"""Carries out faults on a cluster, and takes them back; brings back what has died, as a supervisor would."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass, field

from magnetar.testing.chaos_schedule import Fault, Kind
from magnetar.testing.cluster import Cluster, KeeperNode, RoleNode
from magnetar.testing.processes import ProcessFailed
from magnetar.testing.proxies import ANYBODY, Weather
from magnetar.testing.story import Story

SLOW = Weather(delay_s=0.5)
TRICKLE = Weather(bytes_per_s=2_000)
_READY_S = 60.0
_AGAIN_S = 0.5
_CALL_OFF_TICK_S = 0.1


@dataclass(slots=True, eq=False)
class _Life:
    """One process, and who wants what of it."""

    node: KeeperNode | RoleNode
    wanted: bool = True
    reviving: threading.Thread | None = None
    ready: bool = True
    unexpected_ends: int = 0


@dataclass(slots=True)
class Injector:
    """One thread calls `begin`, `end`, `look`; those that bring processes back are its own."""

    cluster: Cluster
    story: Story
    wrong: list[str] = field(default_factory=list)
    """Ends that no fault explains."""
    _lives: dict[str, _Life] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._lives = {node.name: _Life(node) for node in self.cluster.nodes}

    def begin(self, fault: Fault) -> None:
        """From now on."""
        self.story.tell(f"{fault.kind} {' '.join(fault.targets)} for {fault.lasts_s:.1f} s")
        first, last = fault.targets[0], fault.targets[-1]
        match fault.kind:
            case Kind.KILL | Kind.ALL_DOWN | Kind.STOP:
                for name in fault.targets:
                    self._lives[name].wanted = self._lives[name].ready = False
                nodes = [self._lives[name].node for name in fault.targets]
                for name in fault.targets:
                    self._call_off(self._lives[name])
                if fault.kind is Kind.STOP:
                    self._stop(nodes[0])
                else:
                    self.cluster.kill(nodes)
            case Kind.PAUSE:
                if self._lives[first].node.alive():
                    self._lives[first].node.pause()
            case Kind.CUT:
                self.cluster.cut(first, last)
            case Kind.CUT_ONE_WAY:
                self.cluster.cut(first, last, one_way=True)
            case Kind.RESET:
                self.cluster.reset(first, last)
            case Kind.SLOW:
                self.cluster.spoil(first, ANYBODY, SLOW, one_way=True)
            case Kind.TRICKLE:
                self.cluster.spoil(first, ANYBODY, TRICKLE, one_way=True)
            case Kind.FULL_DISK:
                node = self._lives[first].node
                assert isinstance(node, RoleNode)
                assert node.disk is not None
                node.disk.fill()

    def end(self, fault: Fault) -> None:
        """No longer."""
        first, last = fault.targets[0], fault.targets[-1]
        match fault.kind:
            case Kind.KILL | Kind.ALL_DOWN | Kind.STOP:
                for name in fault.targets:
                    self._lives[name].wanted = True
                    self._revive(self._lives[name])
            case Kind.PAUSE:
                if self._lives[first].node.alive():
                    self._lives[first].node.resume()
            case Kind.CUT | Kind.CUT_ONE_WAY:
                self.cluster.mend(first, last)
                if fault.lasts_s > 10:  # As a firewall does that has forgotten the connection.
                    self.cluster.reset(first, last)
            case Kind.SLOW | Kind.TRICKLE:
                self.cluster.mend(first, ANYBODY)
            case Kind.FULL_DISK:
                node = self._lives[first].node
                assert isinstance(node, RoleNode)
                assert node.disk is not None
                node.disk.relieve()
            case Kind.RESET:
                return
        self.story.tell(f"over: {fault.kind} {' '.join(fault.targets)}")

    def look(self) -> None:
        """Bring back what has ended although nobody killed it."""
        for life in self._lives.values():
            if not life.wanted or life.reviving is not None or life.node.alive():
                continue
            if life.ready:
                status = life.node.exit_status() if isinstance(life.node, RoleNode) else None
                self.story.tell(f"{life.node.name} has ended by itself with status {status}")
                life.unexpected_ends += 1
                # 75: told by its policy to end where its session expired, or a stop that could not flush.
                if status not in (0, 75):
                    self.wrong.append(f"{life.node.name} ended by itself with status {status}")
            self._revive(life)

    def all_ready(self) -> bool:
        """Whether every process runs and has said that it serves."""
        return all(
            life.ready and life.reviving is None and life.node.alive() for life in self._lives.values()
        )

    def close(self) -> None:
        """Bring back nothing any more."""
        for life in self._lives.values():
            life.wanted = False
        for life in self._lives.values():
            self._call_off(life)

    def _stop(self, node: KeeperNode | RoleNode) -> None:
        began = time.monotonic()
        status = node.stop()
        if status not in (0, None):
            self.story.tell(f"{node.name} ended with status {status} when told to stop")
        self.story.tell(f"{node.name} took {time.monotonic() - began:.1f} s to stop")

    def _call_off(self, life: _Life) -> None:
        """End a start that is under way; nobody else may reap what it has launched."""
        while (thread := life.reviving) is not None and thread.is_alive():
            pid = life.node.pid
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
            thread.join(_CALL_OFF_TICK_S)

    def _revive(self, life: _Life) -> None:
        if life.reviving is None:
            life.ready = False
            life.reviving = threading.Thread(target=self._bring_back, args=(life,), daemon=True)
            life.reviving.start()

    def _bring_back(self, life: _Life) -> None:
        """Start it until it is ready, as often as that takes: its ZooKeepers, or its disk, may be missing still."""
        try:
            while life.wanted:
                try:
                    life.node.launch()
                    life.node.wait_until_ready(_READY_S)
                except ProcessFailed as error:
                    if life.wanted:
                        self.story.tell(f"{life.node.name} did not start: {_last_line(str(error))}")
                    life.node.kill()
                    time.sleep(_AGAIN_S)
                else:
                    life.ready = True
                    self.story.tell(f"{life.node.name} is back")
                    return
        finally:
            life.reviving = None


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:200] if lines else "no word"
