"""The long list of a log's ledgers: its older part is moved to records of its own, chapters, which never change.

So the log's record stays small, however many ledgers there are, and a new ledger costs no more to be named. A
chapter is written before the record names it, and deleted after the record does so no more.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace

from magnetar.environment.crash import crash_point
from magnetar.environment.logs import get_logger
from magnetar.managed_ledger.errors import RecordUnreadable, StorageUnavailable
from magnetar.managed_ledger.records import Chapter, ListedLedger, LogRecord
from magnetar.metadata.errors import AlreadyExists, BadVersion, MetadataError, NotEmpty, NotFound
from magnetar.metadata.store import MUST_NOT_EXIST, MetadataStore

log = get_logger("magnetar.managed_ledger")

LISTS_PATH = "/managed-ledger-lists"
CHAPTER_VERSION = 1
CHAPTER_LEDGERS = 1000
"""So many ledgers go into one chapter, when twice as many lie in the record."""


class ChapterMissing(Exception):
    """The record has changed since it was read; or what it names is lost."""


def list_path(name: str) -> str:
    return f"{LISTS_PATH}/{name}"


def chapter_path(name: str, chapter: Chapter) -> str:
    return f"{LISTS_PATH}/{name}/{chapter.name}"


def encode_chapter(ledgers: Sequence[ListedLedger]) -> bytes:
    fields = {
        "version": CHAPTER_VERSION,
        "ledgers": [[each.ledger_id, each.entries, each.size, each.closed_ms] for each in ledgers],
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_chapter(name: str, chapter: Chapter, data: bytes) -> list[ListedLedger]:
    """
    Raises:
        RecordUnreadable
    """
    what = f"chapter {chapter.name} of the ledgers of log {name!r}"
    try:
        fields = json.loads(data)
        if fields["version"] != CHAPTER_VERSION:
            raise RecordUnreadable(
                what, f"format version {fields['version']}; this software knows {CHAPTER_VERSION}"
            )
        ledgers = [ListedLedger(*map(int, each)) for each in fields["ledgers"]]
    except (ValueError, TypeError, KeyError) as error:
        raise RecordUnreadable(what, f"{type(error).__name__}: {error}") from error
    if not ledgers or (ledgers[0].ledger_id, ledgers[-1].ledger_id) != (chapter.first, chapter.last):
        raise RecordUnreadable(what, "it does not hold the ledgers it is said to")
    return ledgers


class ChapterStore:
    """Reads and writes the chapters of logs."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata

    async def with_chapters(self, name: str, record: LogRecord) -> LogRecord:
        """The record with all its ledgers; those of a log that is being deleted, as far as they are still listed.

        Raises:
            ChapterMissing, RecordUnreadable, StorageUnavailable
        """
        if not record.chapters:
            return record
        # A deletion lets chapters go last, when what they list is gone: where it was cut short, one may be missing.
        read = self._read_left if record.deleted else self._read
        parts = await asyncio.gather(*(read(name, each) for each in record.chapters))
        lost = {each.ledger_id for each in record.lost}
        older = [
            each
            for part in parts
            for each in part
            if each.ledger_id >= record.first_ledger and each.ledger_id not in lost
        ]
        return replace(record, ledgers=(*older, *record.ledgers))

    async def _read(self, name: str, chapter: Chapter) -> list[ListedLedger]:
        try:
            found = await self._metadata.get(chapter_path(name, chapter))
        except MetadataError as error:
            raise StorageUnavailable(name, str(error) or type(error).__name__) from error
        if found is None:
            raise ChapterMissing(chapter.name)
        return decode_chapter(name, chapter, found.value)

    async def _read_left(self, name: str, chapter: Chapter) -> list[ListedLedger]:
        try:
            return await self._read(name, chapter)
        except ChapterMissing:
            return []

    async def fitted(self, name: str, record: LogRecord, token: str) -> LogRecord:
        """`record` with as much in chapters as should be: those not written yet are, those not needed left out.

        Args:
            token: nobody else uses it for a chapter of this log.
        Raises:
            StorageUnavailable
        """
        first = record.ledgers[0].ledger_id if record.ledgers else 0
        chapters = [each for each in record.chapters if record.ledgers and each.last >= first]
        covered = chapters[-1].last if chapters else -1
        inline = [each for each in record.ledgers if each.ledger_id > covered and each.closed_ms]
        while len(inline) > 2 * CHAPTER_LEDGERS:
            part, inline = inline[:CHAPTER_LEDGERS], inline[CHAPTER_LEDGERS:]
            chapter = Chapter(f"{part[0].ledger_id}-{token}", part[0].ledger_id, part[-1].ledger_id)
            await self.write(name, chapter, part)
            chapters.append(chapter)
        if not chapters and not record.chapters:
            return record
        return replace(record, chapters=tuple(chapters), first_ledger=first if chapters else 0)

    async def write(self, name: str, chapter: Chapter, ledgers: Sequence[ListedLedger]) -> None:
        """Write a chapter, unless it is there."""
        crash_point("managed_ledger.before_chapter")
        try:
            await self._metadata.put(
                chapter_path(name, chapter), encode_chapter(ledgers), expected_version=MUST_NOT_EXIST
            )
        except (AlreadyExists, BadVersion):
            return
        except MetadataError as error:
            raise StorageUnavailable(name, str(error) or type(error).__name__) from error
        crash_point("managed_ledger.after_chapter")

    async def delete(self, name: str, chapters: Sequence[Chapter], *, all_of_them: bool = False) -> None:
        """Delete chapters that no record names any more. What fails is found by the sweeper.

        Raises:
            StorageUnavailable
        """
        try:
            for chapter in chapters:
                crash_point("managed_ledger.before_chapter_delete")
                await self.delete_path(chapter_path(name, chapter))
            if all_of_them:
                await self.delete_path(list_path(name))
        except MetadataError as error:
            raise StorageUnavailable(name, str(error) or type(error).__name__) from error

    async def delete_path(self, path: str) -> None:
        """
        Raises:
            MetadataError
        """
        try:
            await self._metadata.delete(path)
        except (NotFound, NotEmpty):
            return
