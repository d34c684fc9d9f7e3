"""Reading everything again, slowly: a damaged or missing copy is noticed and mended while there are others.

A round goes through all complete entry logs, verifying each record the index points to, then through all ledgers that
metadata names this bookie for, looking for entries that should be here and are not. Without peers a round only reports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.errors import EntryLogCorrupt
from magnetar.bookie.index import IndexUnusable
from magnetar.bookie.integrity import Integrity
from magnetar.bookie.several import AnyBookie
from magnetar.bookie.storage import DamagedEntry
from magnetar.environment.logs import get_logger
from magnetar.metrics.sample import Sample, counter, gauge

_STEP_BYTES = 1 << 20
_KNOWN_MAX = 100_000

log = get_logger("magnetar.bookie.scrub")


@dataclass(slots=True)
class ScrubReport:
    """What one round has found and done."""

    logs: int = 0
    bytes: int = 0
    damaged: int = 0
    restored: int = 0
    missing: int = 0
    """Entries of this bookie's stripes that were not here."""
    unreadable_logs: int = 0


class Scrubber:
    """Belongs to the loop of its bookie."""

    def __init__(
        self,
        bookie: AnyBookie,
        integrity: Integrity | None = None,
        *,
        bytes_per_s: int | None = None,
        interval_s: float | None = None,
    ) -> None:
        """
        Args:
            integrity: gets entries back from peers. Without it what is damaged is only reported.
        """
        settings = bookie.settings
        self._bookie = bookie
        self._integrity = integrity
        self._bytes_per_s = settings.scrub_bytes_per_s if bytes_per_s is None else bytes_per_s
        self._interval_s = settings.scrub_interval_s if interval_s is None else interval_s
        self._task: asyncio.Task[None] | None = None
        self.damaged: dict[tuple[int, int], DamagedEntry] = {}
        """Entries of which this bookie has no whole copy, as far as found and not mended: what an operator is told."""
        self.rounds = 0
        self.total = ScrubReport()

    def start(self) -> None:
        if self._bytes_per_s > 0:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                report = await self.scrub()
            except Exception:  # The next round may do better; nothing depends on this one.
                log.exception("scrub.failed")
            else:
                log.info(
                    "scrub.round_ended",
                    logs=report.logs,
                    bytes=report.bytes,
                    damaged=report.damaged,
                    restored=report.restored,
                    missing=report.missing,
                )

    async def scrub(self) -> ScrubReport:
        """One round. What cannot be read is reported and passed over."""
        report = ScrubReport()
        for key in list(self.damaged):
            await self._mend(self.damaged[key], report)
        for share in self._bookie.shares:
            await self._scrub_share(share, report)
        if self._integrity is not None and not self._bookie.limbo:
            checked = await self._integrity.check()
            report.missing += checked.fetched + sum(checked.lost.values())
            report.restored += checked.fetched
        self.rounds += 1
        for name in ("logs", "bytes", "damaged", "restored", "missing", "unreadable_logs"):
            setattr(self.total, name, getattr(self.total, name) + getattr(report, name))
        return report

    async def _scrub_share(self, bookie: Bookie, report: ScrubReport) -> None:
        storage = bookie.storage
        for log_id in storage.missing_logs():
            await self._scrub_by_index(bookie, log_id, report)
        for log_id in storage.complete_logs(storage.log_boundary()):
            try:
                await self._scrub_log(bookie, log_id, report)
            except FileNotFoundError:
                continue  # Collected meanwhile.
            except (OSError, IndexUnusable) as error:
                report.unreadable_logs += 1
                log.error("scrub.log_unreadable", file=str(storage.logs.path(log_id)), reason=str(error))

    async def _scrub_log(self, bookie: Bookie, log_id: int, report: ScrubReport) -> None:
        report.logs += 1
        position: int | None = 0
        while position is not None:
            try:
                step = await asyncio.to_thread(bookie.storage.verify_step, log_id, position, _STEP_BYTES)
            except EntryLogCorrupt as error:
                log.error("scrub.log_damaged", file=str(error.path), offset=error.offset, reason=str(error))
                await self._scrub_by_index(bookie, log_id, report)
                return
            report.bytes += step.bytes
            for damaged in step.damaged:
                await self._found(bookie, damaged, report)
            position = step.position
            if self._bytes_per_s:
                await asyncio.sleep(step.bytes / self._bytes_per_s)

    async def _scrub_by_index(self, bookie: Bookie, log_id: int, report: ScrubReport) -> None:
        """A log that cannot be read through: each entry that the index has in it by itself."""
        storage, known = bookie.storage, bookie.ledgers()
        try:
            found = await asyncio.to_thread(storage.logs.read_map, log_id)
        except FileNotFoundError:
            found = None
        if found is not None:
            known &= set(found.bytes_by_ledger)
        for ledger_id in sorted(known):
            damaged = await asyncio.to_thread(storage.verify_places, log_id, ledger_id)
            for each in damaged:
                await self._found(bookie, each, report)

    async def _found(self, bookie: Bookie, damaged: DamagedEntry, report: ScrubReport) -> None:
        if not bookie.knows(damaged.ledger_id):
            return
        key = damaged.ledger_id, damaged.entry_id
        bookie.damaged.note(*key)
        if key not in self.damaged:
            report.damaged += 1
            log.error(
                "scrub.entry_damaged",
                file=str(damaged.file),
                offset=damaged.offset,
                ledger_id=damaged.ledger_id,
                entry_id=damaged.entry_id,
            )
        if len(self.damaged) < _KNOWN_MAX:
            self.damaged[key] = damaged
        await self._mend(damaged, report)

    async def _mend(self, damaged: DamagedEntry, report: ScrubReport) -> None:
        key = damaged.ledger_id, damaged.entry_id
        if not self._bookie.knows(damaged.ledger_id):
            self.damaged.pop(key, None)  # It was deleted.
            return
        if self._integrity is None:
            return
        try:
            restored = await self._integrity.restore(*key)
        except OSError as error:
            log.warning("scrub.not_restored", ledger_id=key[0], entry_id=key[1], reason=str(error))
            return
        if restored:
            report.restored += 1
            self.damaged.pop(key, None)
            log.info("scrub.entry_restored", ledger_id=key[0], entry_id=key[1])

    def metrics(self) -> Iterator[Sample]:
        labels: Mapping[str, str] = {"bookie": self._bookie.bookie_id}
        yield counter("bookie_scrub_rounds_count", self.rounds, labels)
        yield counter("bookie_scrub_bytes", self.total.bytes, labels)
        yield counter("bookie_scrub_damaged_entries_count", self.total.damaged, labels)
        yield counter("bookie_scrub_missing_entries_count", self.total.missing, labels)
        yield counter("bookie_scrub_restored_entries_count", self.total.restored, labels)
        yield gauge("bookie_damaged_entries", len(self.damaged), labels)
