"""Autorecovery's own records in the metadata store, beside the marks. See `docs/formats/autorecovery.md`.

ROOT/reports/<ledger id>   what a repair could not do, and which entries are lost
ROOT/leaving/<bookie>      this bookie is to be emptied
ROOT/settings              what was set at run time
ROOT/audit                 how many audits were asked for
ROOT/audited               how many of them are done, and when checks last ended
ROOT/workers/<name>        ephemeral: who repairs
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from magnetar.autorecovery.entry_ranges import Ranges, count, written
from magnetar.ledger.errors import MetadataCorrupt
from magnetar.ledger.underreplicated import FORMAT_VERSION, ROOT, decode_record, telling
from magnetar.metadata.errors import BadVersion, NotFound
from magnetar.metadata.store import MUST_NOT_EXIST, MetadataStore

REPORTS_PATH = f"{ROOT}/reports"
LEAVING_PATH = f"{ROOT}/leaving"
SETTINGS_PATH = f"{ROOT}/settings"
AUDIT_PATH = f"{ROOT}/audit"
AUDITED_PATH = f"{ROOT}/audited"
WORKERS_PATH = f"{ROOT}/workers"
ELECTION_PATH = f"{ROOT}/election"
DOUBTS_MAX = 200
RUNS_MAX = 1000
"""So many runs of lost entries are kept of one fragment: a record has its limits. The count is always whole."""


@dataclass(frozen=True, slots=True)
class LostEntries:
    """Entries of one fragment that none of the bookies that are there has."""

    first_entry: int
    """Of the fragment."""
    ensemble: tuple[str, ...]
    entries: Ranges
    """The first runs of them."""
    entry_count: int

    @classmethod
    def of(cls, first_entry: int, ensemble: tuple[str, ...], lost: Ranges) -> LostEntries:
        return cls(first_entry, ensemble, lost[:RUNS_MAX], count(lost))


@dataclass(frozen=True, slots=True)
class RepairReport:
    """Why a ledger is not whole yet. `lost` empty: it can be repaired, but not now."""

    ledger_id: int
    reason: str
    lost: tuple[LostEntries, ...] = ()
    since_ms: int = 0
    """When it was first reported, by the store's clock."""

    @property
    def lost_count(self) -> int:
        return sum(each.entry_count for each in self.lost)

    def doubts(self) -> dict[str, set[int]]:
        """What to read again, by bookie: a copy that is back, and those that were there and no good."""
        doubts: dict[str, set[int]] = {}
        for each in self.lost:
            ids = (entry_id for first, last in each.entries for entry_id in range(first, last + 1))
            some = tuple(islice(ids, DOUBTS_MAX))
            for bookie in each.ensemble:
                doubts.setdefault(bookie, set()).update(some)
        return doubts

    def __str__(self) -> str:
        parts = [f"ledger {self.ledger_id}: {self.reason}"]
        parts += [
            f"lost in the fragment at {each.first_entry} on {', '.join(each.ensemble)}:"
            f" {each.entry_count} entries ({written(each.entries)})"
            for each in self.lost
        ]
        return "; ".join(parts)


class RepairReports:
    """What could not be repaired, for operators to read. The latest word on each ledger."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def put(self, report: RepairReport) -> None:
        value = _encode(
            reason=report.reason,
            lost=[
                {
                    "first_entry": each.first_entry,
                    "ensemble": list(each.ensemble),
                    "entries": [list(run) for run in each.entries],
                    "entry_count": each.entry_count,
                }
                for each in report.lost
            ],
        )
        with telling(f"reporting on ledger {report.ledger_id}"):
            found = await self._store.get(_report_path(report.ledger_id))
            if found is None or found.value != value:
                await self._store.put(_report_path(report.ledger_id), value)

    async def drop(self, ledger_id: int) -> None:
        with telling(f"withdrawing the report on ledger {ledger_id}"):
            try:
                await self._store.delete(_report_path(ledger_id))
            except NotFound:
                return

    async def get(self, ledger_id: int) -> RepairReport | None:
        path = _report_path(ledger_id)
        with telling(f"reading the report on ledger {ledger_id}"):
            found = await self._store.get(path)
        if found is None:
            return None
        fields = decode_record(path, found.value)
        try:
            lost = tuple(
                LostEntries(
                    int(each["first_entry"]),
                    tuple(map(str, each["ensemble"])),
                    tuple((int(first), int(last)) for first, last in each["entries"]),
                    int(each["entry_count"]),
                )
                for each in fields["lost"]
            )
            return RepairReport(ledger_id, str(fields["reason"]), lost, found.created_ms)
        except (KeyError, TypeError, ValueError) as error:
            raise MetadataCorrupt(path, f"{type(error).__name__}: {error}") from error

    async def list(self) -> list[RepairReport]:
        with telling("listing what could not be repaired"):
            names = await self._store.children(REPORTS_PATH)
        found = [await self.get(int(name)) for name in names]
        return [report for report in found if report is not None]


async def leaving_bookies(store: MetadataStore) -> tuple[str, ...]:
    """The bookies that are to be emptied."""
    with telling("listing the bookies to be emptied"):
        return tuple(await store.children(LEAVING_PATH))


async def set_leaving(store: MetadataStore, bookie: str, leaving: bool) -> None:
    """Have a bookie emptied, or not any more."""
    path = f"{LEAVING_PATH}/{bookie}"
    with telling(f"telling that {bookie} is to be emptied"):
        if leaving:
            await store.put(path, _encode())
            return
        try:
            await store.delete(path)
        except NotFound:
            return


async def lost_bookie_delay_s(store: MetadataStore) -> float | None:
    """What was set at run time; None where nothing was."""
    with telling("reading autorecovery's settings"):
        found = await store.get(SETTINGS_PATH)
    if found is None:
        return None
    delay = decode_record(SETTINGS_PATH, found.value).get("lost_bookie_recovery_delay_s")
    return None if delay is None else float(delay)


async def set_lost_bookie_delay_s(store: MetadataStore, delay_s: float | None) -> None:
    """Set it for all, from now on; None: back to what is configured."""
    with telling("changing autorecovery's settings"):
        await store.put(SETTINGS_PATH, _encode(lost_bookie_recovery_delay_s=delay_s))


@dataclass(frozen=True, slots=True)
class Audited:
    """What auditors have done so far. Times by the auditor's clock, 0: never."""

    asked: int = 0
    """The last audit asked for that is done."""
    bookie_check_ms: int = 0
    ledger_check_ms: int = 0
    placement_check_ms: int = 0
    sharing_ledgers: tuple[int, ...] = ()
    """Some ledgers with copies that share a failure domain."""
    sharing_count: int = 0


async def read_audited(store: MetadataStore) -> Audited:
    with telling("reading what was audited"):
        found = await store.get(AUDITED_PATH)
    if found is None:
        return Audited()
    fields = decode_record(AUDITED_PATH, found.value)
    return Audited(
        int(fields.get("asked", 0)),
        int(fields.get("bookie_check_ms", 0)),
        int(fields.get("ledger_check_ms", 0)),
        int(fields.get("placement_check_ms", 0)),
        tuple(map(int, fields.get("sharing_ledgers", ()))),
        int(fields.get("sharing_count", 0)),
    )


async def write_audited(store: MetadataStore, changes: Mapping[str, Any]) -> None:
    """Change some fields of it. Only the leading auditor writes."""
    with telling("noting what was audited"):
        while True:
            found = await store.get(AUDITED_PATH)
            fields = {} if found is None else decode_record(AUDITED_PATH, found.value)
            fields.update(changes)
            fields.pop("version", None)
            try:
                await store.put(
                    AUDITED_PATH,
                    _encode(**fields),
                    expected_version=MUST_NOT_EXIST if found is None else found.version,
                )
                return
            except BadVersion:
                continue


async def audits_asked(store: MetadataStore) -> int:
    with telling("reading whether an audit is wanted"):
        found = await store.get(AUDIT_PATH)
    return 0 if found is None else int(decode_record(AUDIT_PATH, found.value)["asked"])


async def ask_for_audit(store: MetadataStore) -> int:
    """Returns the number of the audit asked for."""
    with telling("asking for an audit"):
        while True:
            found = await store.get(AUDIT_PATH)
            number = 1 if found is None else int(decode_record(AUDIT_PATH, found.value)["asked"]) + 1
            try:
                await store.put(
                    AUDIT_PATH,
                    _encode(asked=number),
                    expected_version=MUST_NOT_EXIST if found is None else found.version,
                )
            except BadVersion:
                continue
            return number


def _report_path(ledger_id: int) -> str:
    return f"{REPORTS_PATH}/{ledger_id:019d}"


def _encode(**fields: Any) -> bytes:
    return json.dumps({"version": FORMAT_VERSION, **fields}, separators=(",", ":")).encode()
