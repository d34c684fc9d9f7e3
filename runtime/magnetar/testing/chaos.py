"""`make chaos MINUTES=n [SEED=k]`: a real cluster under load of official clients while everything goes wrong.

Random kills, pauses, restarts, full disks and cut connections, over all roles, ZooKeepers included; then all is healed, and
everything that was acknowledged is looked for. Exits with 1 where anything is missing, out of order, twice, or different
between replicas. The directory it names keeps the logs and the story.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from magnetar.testing.chaos_faults import Injector
from magnetar.testing.chaos_load import Load, Plan, prepare, usual_plan
from magnetar.testing.chaos_schedule import Fault, Targets, draw, overlapping_share
from magnetar.testing.cluster import Cluster, ClusterPlan
from magnetar.testing.processes import ProcessFailed
from magnetar.testing.replicas import compare_replicas
from magnetar.testing.story import Story

OVERLAP_MIN = 0.3
SHOWN = 50
RETURN_S = 180.0
"""What processes, clients and repair may take each, once nothing is wrong any more."""
REPAIR_S = 600.0
_TICK_S = 0.1
_TELL_S = 15.0
_SMALL_DISK = 512 << 20
ENVIRONMENT = {
    # Small ledgers, so that many are open, closed and recovered; quick repair, so that it happens within the run.
    "MAGNETAR_BROKER__LEDGER_MAX_ENTRIES": "400",
    "MAGNETAR_BROKER__LEDGER_MIN_AGE_S": "2",
    "MAGNETAR_AUTORECOVERY__LOST_BOOKIE_RECOVERY_DELAY_S": "5",
    "MAGNETAR_AUTORECOVERY__OPEN_LEDGER_GRACE_S": "5",
    "MAGNETAR_AUTORECOVERY__WORKERS_IDLE_S": "5",
    "MAGNETAR_AUTORECOVERY__RETRY_MAX_S": "10",
    "MAGNETAR_AUTORECOVERY__BOOKIE_CHECK_INTERVAL_S": "30",
}
CHAOS_PLAN = ClusterPlan(
    bookies=5,
    brokers=2,
    autorecoveries=1,
    ensemble=(3, 2, 2),
    small_disks={3: _SMALL_DISK, 4: _SMALL_DISK},
    environment=ENVIRONMENT,
)


@dataclass(slots=True)
class Report:
    """What came of a run."""

    seed: int
    faults: list[Fault] = field(default_factory=list)
    receipted: int = 0
    wrong: list[str] = field(default_factory=list)
    facts: dict[str, object] = field(default_factory=dict)

    def text(self) -> str:
        kinds = Counter(str(fault.kind) for fault in self.faults)
        lines = [
            f"chaos: seed {self.seed}, {len(self.faults)} faults ("
            + ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
            + f"), {overlapping_share(self.faults):.0%} overlapping",
            f"acknowledged messages: {self.receipted}",
            *(f"{name}: {value}" for name, value in self.facts.items()),
        ]
        if self.wrong:
            lines += [f"VIOLATIONS: {len(self.wrong)}", *(f"  {each}" for each in self.wrong[:SHOWN])]
            if len(self.wrong) > SHOWN:
                lines.append("  ... and so on")
        else:
            lines.append("nothing is wrong")
        return "\n".join(lines)


class ChaosRun:
    """One run, from an empty directory to its report."""

    def __init__(
        self,
        directory: Path,
        seconds: float,
        seed: int,
        *,
        plan: ClusterPlan = CHAOS_PLAN,
        load_plan: Plan | None = None,
        echo: bool = True,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._seconds = seconds
        self._plan = plan
        self._load_plan = load_plan or usual_plan()
        self._story = Story(directory / "story.txt", echo=echo)
        self._report = Report(seed)

    def run(self) -> Report:
        """Never raises for what the cluster does wrong: that is in the report."""
        story = self._story
        story.tell(f"seed {self._report.seed}, {self._seconds:.0f} s; logs are in {self._directory}")
        with Cluster(self._directory / "cluster", self._plan) as cluster:
            story.tell(f"the cluster serves at {cluster.service_url}")
            prepare(cluster.web_url())
            load = Load.start(self._load_plan, self._directory / "load", cluster.service_url)
            try:
                injector = Injector(cluster, story)
                try:
                    self._disturb(cluster, load, injector)
                    self._heal(cluster, load, injector)
                finally:
                    injector.close()
                self._report.wrong += injector.wrong
                self._check(cluster, load)
            finally:
                load.kill()
        for wrong in self._report.wrong[:SHOWN]:
            story.tell(f"WRONG: {wrong}")
        (self._directory / "report.txt").write_text(self._report.text() + "\n")
        return self._report

    def _disturb(self, cluster: Cluster, load: Load, injector: Injector) -> None:
        targets = Targets(
            keepers=tuple(node.name for node in cluster.keepers),
            bookies=tuple(node.name for node in cluster.bookies),
            brokers=tuple(node.name for node in cluster.brokers),
            others=tuple(node.name for node in cluster.autorecoveries),
            small_disks=tuple(node.name for node in cluster.bookies if node.disk is not None),
        )
        faults = draw(targets, self._seconds, self._report.seed)
        for fault in faults:
            self._story.tell(f"to come: {fault}")
        if not targets.small_disks:
            self._story.tell("this user may not mount file systems: no disk will be full")
        coming, active = list(faults), list[Fault]()
        began = told = moved = time.monotonic()
        receipted = longest_s = 0.0
        while (now := time.monotonic() - began) < self._seconds:
            for fault in [each for each in active if each.until_s <= now]:
                active.remove(fault)
                injector.end(fault)
            while coming and coming[0].at_s <= now:
                fault = coming.pop(0)
                injector.begin(fault)
                active.append(fault)
                self._report.faults.append(fault)
            injector.look()
            load.update()
            if load.receipted() != receipted:
                receipted, moved = load.receipted(), time.monotonic()
            longest_s = max(longest_s, time.monotonic() - moved)
            if time.monotonic() - told > _TELL_S:
                told = time.monotonic()
                self._story.tell(
                    f"{load.receipted()} acknowledged, {load.in_flight()} on their way, {load.missing()} to be received"
                )
            time.sleep(_TICK_S)
        self._story.tell("no more faults")
        self._report.facts["longest time without a receipt"] = f"{longest_s:.1f} s"
        for fault in active:
            injector.end(fault)
        cluster.mend_all()
        share = overlapping_share(self._report.faults)
        if len(self._report.faults) > 5 and share < OVERLAP_MIN:
            self._report.wrong.append(f"only {share:.0%} of the faults overlap: the schedule is too tame")

    def _heal(self, cluster: Cluster, load: Load, injector: Injector) -> None:
        def returned() -> bool:
            injector.look()
            return injector.all_ready()

        self._wait("all processes serve again", returned, RETURN_S, injector)
        load.producers.ask_to_stop()
        self._wait("producers have all receipts", load.producers.ended, RETURN_S, injector)
        load.update()

        def received() -> bool:
            load.update()
            return load.missing() == 0

        self._wait("everything acknowledged is received", received, RETURN_S, injector)
        self._wait("no subscription has a backlog", lambda: self._idle(cluster, load), RETURN_S, injector)
        for process in load.consumers:
            process.ask_to_stop()
        for process in load.consumers:
            self._wait(f"{process.name} have ended", process.ended, RETURN_S, injector)
        self._wait("no ledger lacks copies", lambda: self._whole(cluster), REPAIR_S, injector)

    def _check(self, cluster: Cluster, load: Load) -> None:
        report, wrong = self._report, self._report.wrong
        load.update()
        report.receipted = load.receipted()
        report.facts["in flight at the end"] = load.in_flight()
        if report.receipted == 0:
            wrong.append("nothing was acknowledged: this run proves nothing")
        wrong += load.differences()
        self._story.tell("reading the topics from their beginning")
        wrong += load.stored_differences(cluster.service_url)
        self._story.tell("all brokers stop, and start again")
        for broker in cluster.brokers:
            status = broker.stop()
            if status not in (0, None):
                wrong.append(f"{broker.name} ended with status {status} when told to stop")
        self._story.tell("comparing replicas")
        replicas = asyncio.run(compare_replicas(cluster.metadata_store_direct))
        report.facts["ledgers"] = replicas.ledgers
        report.facts["entries compared"] = replicas.entries
        report.facts["copies read"] = replicas.copies
        wrong += replicas.wrong
        cluster.start(cluster.brokers)
        left = {name: count for name, count in load.backlog(cluster).items() if count}
        if left:
            wrong.append(
                f"acknowledged messages would come again after a clean restart of the brokers: {left}"
            )
        report.facts["messages received"] = sum(len(each.received) for each in load.receipts)
        report.facts["troubles of clients"] = load.troubles()
        report.facts["memory of brokers, MiB"] = [node.rss_bytes() >> 20 for node in cluster.brokers]
        report.facts["tracebacks in logs"] = _tracebacks(cluster)

    def _idle(self, cluster: Cluster, load: Load) -> bool:
        try:
            return not any(load.backlog(cluster).values())
        except OSError:
            return False

    def _whole(self, cluster: Cluster) -> bool:
        try:
            return not cluster.command_json("autorecovery", "underreplicated")
        except ProcessFailed as error:
            self._story.tell(f"autorecovery underreplicated: {error}")
            return False

    def _wait(self, what: str, condition: Callable[[], bool], within_s: float, injector: Injector) -> None:
        began = time.monotonic()
        while not condition():
            injector.look()
            if time.monotonic() - began > within_s:
                self._report.wrong.append(f"not within {within_s:.0f} s after the last fault: {what}")
                self._story.tell(f"NOT within {within_s:.0f} s: {what}")
                return
            time.sleep(0.3)
        took = time.monotonic() - began
        self._report.facts[what] = f"after {took:.1f} s"
        self._story.tell(f"{what}, after {took:.1f} s")


def _tracebacks(cluster: Cluster) -> dict[str, int]:
    found = {}
    for node in cluster.roles:
        count = node.log.read_text(errors="replace").count("Traceback (most recent call last)")
        if count:
            found[node.name] = count
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m magnetar.testing.chaos",
        description="Break a real cluster under load for a while, heal it, and check everything acknowledged.",
    )
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=None, help="the same seed draws the same faults")
    parser.add_argument("--directory", type=Path, default=None, help="logs and data (default: a new one)")
    parser.add_argument("--keep", action="store_true", help="keep the data of a clean run too")
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT):  # SIGINT too: a shell's background jobs ignore it.
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    directory = options.directory or Path(tempfile.mkdtemp(prefix="magnetar-chaos-"))
    report = ChaosRun(directory, 60 * options.minutes, seed).run()
    sys.stdout.write(report.text() + "\n")
    if not report.wrong and not options.keep:
        shutil.rmtree(directory / "cluster", ignore_errors=True)
    sys.stdout.write(f"story and logs: {directory}\n")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
