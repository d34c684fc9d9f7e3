"""`make soak MINUTES=30`: many topics and connections, clients of two kinds coming and going, the broker killed twice.

Exits with 1 where an acknowledged message never reached one of its topic's subscriptions, where a subscription stood still
with something to deliver and somebody to take it, where a subscription keeps a backlog that consumers do not get, or where
memory grew. Prints what a send took until its receipt, in percentiles.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from magnetar.testing.admin_calls import call, topic_path
from magnetar.testing.processes import MagnetarProcess, free_port
from magnetar.testing.soak_clients import topic_name, types_of
from magnetar.testing.story import Story

LOOK_S: Final = 15.0
STUCK_LOOKS: Final = 4
"""So many looks in a row without a delivery, although there was something for somebody."""
DRAIN_S: Final = 180.0
END_S: Final = 120.0
GROWTH_MAX: Final = 0.10
GROWTH_SLACK_MIB: Final = 24.0
OFFICIAL_PER_PROCESS: Final = 100
DOWN_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class SoakPlan:
    """How much of everything."""

    seconds: float = 1800.0
    topics: int = 200
    connections: int = 2000
    official_share: float = 0.2
    per_second: float = 1500.0
    kills: int = 2
    seed: int = 0


@dataclass(slots=True)
class SoakReport:
    """What came of it."""

    wrong: list[str] = field(default_factory=list)
    facts: dict[str, object] = field(default_factory=dict)

    def text(self) -> str:
        lines = [f"{name}: {value}" for name, value in self.facts.items()]
        lines += [f"WRONG: {each}" for each in self.wrong[:50]] or ["nothing is wrong"]
        return "\n".join(lines)


class StuckWatch:
    """Finds subscriptions that deliver nothing although they could. Pure: it is shown stats, look after look."""

    def __init__(self) -> None:
        self._still: Counter[tuple[str, str]] = Counter()
        self._sent: dict[tuple[str, str], int] = {}

    def look(self, topic: str, stats: dict[str, Any]) -> list[str]:
        """The subscriptions that have now stood still for too long."""
        found = []
        for name, each in stats["subscriptions"].items():
            place = (topic, name)
            sent = each["msgOutCounter"]
            waiting = each["msgBacklog"] - each["unackedMessages"] > 0
            willing = any(consumer["availablePermits"] > 0 for consumer in each["consumers"])
            still = waiting and willing and self._sent.get(place) == sent
            self._sent[place] = sent
            self._still[place] = self._still[place] + 1 if still else 0
            if self._still[place] == STUCK_LOOKS:
                found.append(
                    f"{topic} {name}: {each['msgBacklog']} to deliver, permits, and nothing sent for "
                    f"{STUCK_LOOKS * LOOK_S:.0f} s"
                )
        return found


class ClientProcess:
    """A process of `soak_clients`."""

    def __init__(self, directory: Path, plan: dict[str, Any]) -> None:
        self.seen = directory / f"{plan['name']}.json"
        with (directory / f"{plan['name']}.log").open("w") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "magnetar.testing.soak_clients",
                    json.dumps({**plan, "seen": str(self.seen)}),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def end_producers(self) -> None:
        """Tell them to; `wait_for_producers` says when they are gone."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def wait_for_producers(self) -> None:
        """Until each has its last receipt.

        Raises:
            RuntimeError: the process has ended instead.
        """
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise RuntimeError(f"the clients of {self.seen.stem} have ended: see their log")

    def end_consumers(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def result(self) -> dict[str, Any]:
        """What its clients saw; waits for its end."""
        status = self._process.wait(END_S)
        if status:
            raise RuntimeError(f"the clients of {self.seen.stem} ended with status {status}: see their log")
        seen: dict[str, Any] = json.loads(self.seen.read_text())
        return seen

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class Soak:
    """One run in an empty directory."""

    def __init__(self, directory: Path, plan: SoakPlan, *, echo: bool = True) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._plan = plan
        self._report = SoakReport()
        self._story = Story(directory / "story.txt", echo=echo)
        self._server = MagnetarProcess.standalone(directory, port=free_port(), web_port=free_port())
        self._watch = StuckWatch()
        self._memory: list[list[float]] = [[]]
        """PSS in MiB, of each life of the broker."""

    def run(self) -> SoakReport:
        """From nothing to the report."""
        self._server.start()
        processes: list[ClientProcess] = []
        try:
            self._prepare()
            processes = [ClientProcess(self._directory, plan) for plan in self._client_plans()]
            self._soak()
            self._story.tell("producers end")
            for process in processes:
                process.end_producers()
            for process in processes:
                process.wait_for_producers()
            self._story.tell("producers are gone")
            self._drain()
            for process in processes:
                process.end_consumers()
            self._judge([process.result() for process in processes])
        finally:
            for process in processes:
                process.kill()
            self._server.stop()
        return self._report

    def _prepare(self) -> None:
        web = self._server.web_url
        call(web, "PUT", "/namespaces/public/soak", {})
        for number in range(self._plan.topics):
            for name in types_of(number):
                path = topic_path(topic_name(number))
                call(web, "PUT", f"{path}/subscription/{name}", {"ledgerId": -1, "entryId": -1})
        self._story.tell(f"{self._plan.topics} topics with two subscriptions each")

    def _client_plans(self) -> Iterator[dict[str, Any]]:
        plan = self._plan
        official = round(plan.connections * plan.official_share)
        gap_s = plan.connections * 0.4 / plan.per_second
        common = {"url": self._server.service_url, "topics": plan.topics, "gap_s": gap_s}
        for number, first in enumerate(range(0, official, OFFICIAL_PER_PROCESS)):
            count = min(OFFICIAL_PER_PROCESS, official - first)
            name = f"official-{number}"
            yield {
                **common,
                "name": name,
                "official": True,
                "connections": count,
                "seed": plan.seed + number,
            }
        ours = plan.connections - official
        for number, count in enumerate((ours // 2, ours - ours // 2)):
            yield {
                **common,
                "name": f"ours-{number}",
                "official": False,
                "connections": count,
                "seed": plan.seed - 1 - number,
            }

    def _soak(self) -> None:
        began = time.monotonic()
        kills = [
            self._plan.seconds * (number + 1) / (self._plan.kills + 1) for number in range(self._plan.kills)
        ]
        connections: list[int] = []
        while (now := time.monotonic() - began) < self._plan.seconds:
            if kills and now >= kills[0]:
                kills.pop(0)
                self._story.tell("SIGKILL")
                self._server.kill()
                time.sleep(DOWN_S)
                self._server.start()
                self._story.tell(f"ready again after {self._server.ready_after_s:.2f} s")
                self._memory.append([])
            self._look()
            self._memory[-1].append(pss_mib(self._server.pid))
            connections.append(_connections(self._server.pid))  # Few at the start, and after a kill.
            self._story.tell(f"memory {self._memory[-1][-1]:.0f} MiB, {connections[-1]} sockets")
            time.sleep(max(0.0, min(LOOK_S, began + self._plan.seconds - time.monotonic())))
        self._report.facts["sockets of the broker, median"] = round(statistics.median(connections))

    def _look(self) -> int:
        """Look at every subscription. Returns how much there is to deliver."""
        backlog = 0
        for number in range(self._plan.topics):
            topic = topic_name(number)
            try:
                stats = call(self._server.web_url, "GET", f"{topic_path(topic)}/stats")
            except OSError as error:
                self._story.tell(f"{topic}: {error}")
                continue
            self._report.wrong += self._watch.look(topic, stats)
            backlog += sum(each["msgBacklog"] for each in stats["subscriptions"].values())
        return backlog

    def _drain(self) -> None:
        """Give every subscription a consumer that stays, until nothing is left."""
        began = time.monotonic()
        self._left = asyncio.run(self._take_the_rest())
        self._report.facts["what was left was taken after"] = f"{time.monotonic() - began:.1f} s"

    async def _take_the_rest(self) -> dict[tuple[str, str], list[bytes]]:
        from magnetar.client import Client

        taken: dict[tuple[str, str], list[bytes]] = {}
        done = asyncio.Event()

        async def take(topic: str, kind: Any) -> None:
            async with Client(self._server.service_url) as client:
                # The other clients' consumers are still there: an exclusive one is waited for.
                while not done.is_set():
                    try:
                        consumer = await client.subscribe(topic, kind, type=kind, initial="earliest")
                    except Exception as error:
                        self._story.tell(f"{topic} {kind}: {error}")
                        await asyncio.sleep(2)
                        continue
                    break
                else:
                    return
                while not done.is_set():
                    message = await consumer.receive(timeout_s=1)
                    if message is not None:
                        taken.setdefault((topic, kind), []).append(bytes(message.data))
                        consumer.acknowledge(message)
                await consumer.flush_acknowledgements()

        loop = asyncio.get_running_loop()
        tasks = [
            loop.create_task(take(topic_name(number), kind))
            for number in range(self._plan.topics)
            for kind in types_of(number)
        ]
        deadline = time.monotonic() + DRAIN_S
        while backlog := await asyncio.to_thread(self._look):
            if time.monotonic() > deadline:
                self._report.wrong.append(
                    f"{backlog} messages are not delivered {DRAIN_S:.0f} s after the last"
                )
                break
            await asyncio.sleep(1)
        done.set()
        await asyncio.gather(*tasks)
        return taken

    def _judge(self, results: list[dict[str, Any]]) -> None:
        report = self._report
        receipted: dict[str, set[bytes]] = {}
        received: dict[tuple[str, str], set[bytes]] = {
            place: set(payloads) for place, payloads in self._left.items()
        }
        latencies: list[float] = []
        troubles: Counter[str] = Counter()
        lives = deliveries = 0
        for result in results:
            for topic, producers in result["receipted"].items():
                receipted.setdefault(topic, set()).update(_payloads(producers))
            for topic, subscriptions in result["received"].items():
                for name, producers in subscriptions.items():
                    received.setdefault((topic, name), set()).update(_payloads(producers))
                    deliveries += sum(map(len, producers.values()))
            latencies += result["latencies_ms"]
            lives += result["lives"]
            troubles.update(result["troubles"])
        for number in range(self._plan.topics):
            topic = topic_name(number)
            for name in types_of(number):
                lost = receipted.get(topic, set()) - received.get((topic, name), set())
                if lost:
                    report.wrong.append(
                        f"{topic} {name}: {len(lost)} acknowledged messages never came: {min(lost)!r}"
                    )
        count = sum(map(len, receipted.values()))
        if not count:
            report.wrong.append("nothing was acknowledged: this run proves nothing")
        else:
            cuts = statistics.quantiles(latencies, n=1000, method="inclusive")
            report.facts["ms until the receipt, p50 / p90 / p99 / p99.9 / most"] = " / ".join(
                f"{each:.1f}" for each in (cuts[499], cuts[899], cuts[989], cuts[998], max(latencies))
            )
        report.facts["acknowledged messages"] = count
        report.facts["deliveries to clients that came and went"] = deliveries
        report.facts["clients that came and went"] = lives
        report.facts["troubles of clients"] = dict(troubles.most_common(8))
        for number, samples in enumerate(self._memory):
            self._judge_memory(number, samples)

    def _judge_memory(self, life: int, samples: list[float]) -> None:
        """Of a life's second quarter and its last: what came at its start is not growth."""
        if len(samples) < 12:
            return
        quarter = len(samples) // 4
        early, late = (
            statistics.median(part) for part in (samples[quarter : 2 * quarter], samples[-quarter:])
        )
        self._report.facts[f"memory of life {life + 1}, MiB"] = f"{early:.0f} -> {late:.0f}"
        if late > early * (1 + GROWTH_MAX) + GROWTH_SLACK_MIB:
            self._report.wrong.append(f"memory grew from {early:.0f} to {late:.0f} MiB in life {life + 1}")


def pss_mib(pid: int) -> float:
    """Proportional set size of one process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def _connections(pid: int) -> int:
    count = 0
    for each in Path(f"/proc/{pid}/fd").iterdir():
        try:
            count += str(each.readlink()).startswith("socket:")
        except OSError:
            continue  # It was closed while we looked.
    return count


def _payloads(producers: dict[str, list[int]]) -> Iterator[bytes]:
    for name, numbers in producers.items():
        for number in numbers:
            yield f"{name}:{number}".encode()


def main() -> int:
    """Read the arguments and run."""
    usual = SoakPlan()
    parser = argparse.ArgumentParser(prog="python -m magnetar.testing.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=usual.seconds / 60)
    parser.add_argument("--topics", type=int, default=usual.topics)
    parser.add_argument("--connections", type=int, default=usual.connections)
    parser.add_argument(
        "--per-second", type=float, default=usual.per_second, help="messages of all producers"
    )
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    plan = SoakPlan(
        60 * options.minutes,
        options.topics,
        options.connections,
        per_second=options.per_second,
        seed=seed,
    )
    directory = Path(tempfile.mkdtemp(prefix="magnetar-soak-"))
    report = Soak(directory, plan).run()
    sys.stdout.write(f"soak: seed {seed}\n{report.text()}\nstory and logs: {directory}\n")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
