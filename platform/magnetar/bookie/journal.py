"""The journal: what makes an add durable before it is acknowledged.

One thread writes. Everything that queued while its last sync ran is the next group: one write, one fdatasync, one
`call_soon_threadsafe` for all its acknowledgements. Nothing is ever written after a failed sync: the process ends. A full
disk is waited for: nothing of the group is promised yet, and what waits behind it is bounded.
"""

from __future__ import annotations

import asyncio
import errno
import queue
import threading
from collections import deque
from collections.abc import Callable

from magnetar.bookie.mark import Mark
from magnetar.bookie.record import FIRST_BLOCK, SEAL, Kind, Pending, encode_group, group_bytes
from magnetar.bookie.segments import OpenSegment, Segments
from magnetar.environment.crash import crash_point
from magnetar.environment.logs import get_logger
from magnetar.protocol.bookie import BookieStatus

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_ROOM_PAUSE_S = 0.5
_SEAL_S = 1.0

log = get_logger("magnetar.bookie.journal")


class Journal:
    """Appends records in the order of the calls. `append` and `stop` belong to the loop."""

    def __init__(self, segments: Segments, *, on_failure: Callable[[BaseException], object]) -> None:
        self._segments = segments
        self._on_failure = on_failure
        self._queue: deque[Pending] = deque()
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._sleeping = False
        self._stopping = False
        self._full = False
        self._stop_asked = threading.Event()
        self._thread: threading.Thread | None = None
        self._preparing: threading.Thread | None = None
        self.durable = Mark(0, 0, 0)
        """Everything before this place is on disk. Replaced as a whole by the writer thread."""
        self.on_acknowledged: Callable[[], None] | None = None
        """Called on the loop after each group: there is room again."""
        self.pending_bytes = 0
        """Bytes of records that were appended and not acknowledged yet."""
        self._seal_timer: asyncio.TimerHandle | None = None
        self._sealing = False
        self._acknowledged_at = 0.0
        self.groups = 0
        self.synced_bytes = 0

    def start(self, loop: asyncio.AbstractEventLoop, segment: int, first_sequence: int) -> None:
        """Begin a new segment and the writer thread. Blocks on the disk: not for the loop."""
        self._loop = loop
        self._open(segment, first_sequence)
        self.durable = Mark(segment, FIRST_BLOCK, first_sequence)
        self._start_writing()

    def append(
        self, kind: Kind, size: int, body: tuple[bytes, ...], done: Callable[[BookieStatus], None] | None
    ) -> None:
        """Queue a record; `done(OK)` follows on the loop once it is durable."""
        self._queue.append((kind, size, body, done))
        self.pending_bytes += size
        if self._sleeping:
            self._sleeping = False
            self._wake.put(None)

    async def stop(self) -> None:
        """Write what is queued, acknowledge it, end the thread. On a full disk what is queued is let go, unanswered."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._stopping = True
        if self._seal_timer is not None:
            self._seal_timer.cancel()
            self._seal_timer = None
        self._stop_asked.set()
        self._wake.put(None)
        await asyncio.to_thread(thread.join)
        if self._preparing is not None:
            await asyncio.to_thread(self._preparing.join)
        await asyncio.sleep(0)  # The last acknowledgements are behind us in the loop's queue by now.
        self._open_segment.file.close()

    # The writer thread.

    def _start_writing(self) -> None:
        self._thread = threading.Thread(target=self._run, name="bookie-journal", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while group := self._next_group():
                if not self._commit_once_there_is_room(group) or not self._tell(group):
                    return
        except BaseException as error:
            self._on_failure(error)

    def _next_group(self) -> list[Pending]:
        waiting = self._queue
        while not waiting:
            if self._stopping:
                return []
            self._sleeping = True
            if waiting or self._stopping:  # Came in between; a wake-up left behind does no harm.
                self._sleeping = False
                continue
            self._wake.get()
        take = waiting.popleft
        return [take() for _ in range(len(waiting))]

    def _commit_once_there_is_room(self, group: list[Pending]) -> bool:
        """False if a stop was asked for before there was."""
        while not self._try_to_commit(group):
            if self._stop_asked.wait(_NO_ROOM_PAUSE_S):
                log.warning("journal.abandoned", records=len(group), file=str(self._open_segment.path))
                return False
        return True

    def _try_to_commit(self, group: list[Pending]) -> bool:
        """False: there is no room on the disk, and nothing of the group is promised."""
        try:
            self._commit(group)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            if not self._full:
                log.error(
                    "journal.disk_full",
                    file=str(self._open_segment.path),
                    reason=str(error),
                    advice="free space; adds wait until then",
                )
            self._full = True
            return False
        if self._full:
            self._full = False
            log.info("journal.disk_has_room", file=str(self._open_segment.path))
        return True

    def _commit(self, group: list[Pending]) -> None:
        size = group_bytes(group)
        if self._offset + size > self._segments.segment_bytes and self._offset > FIRST_BLOCK:
            self._roll()
        if self._offset + size > self._allocated:
            self._grow(self._offset + size)
        header = self._open_segment.header
        self._open_segment.file.write(
            self._offset, encode_group(header.segment, header.salt, self._sequence, group)
        )
        crash_point("bookie.journal.before_sync")
        self._open_segment.file.sync()
        crash_point("bookie.journal.after_sync")
        self._offset += size
        self._sequence += len(group)
        self.durable = Mark(header.segment, self._offset, self._sequence)
        self.groups += 1
        self.synced_bytes += size
        if self._preparing is None and self._offset > self._segments.segment_bytes // 2:
            self._prepare_next()

    def _roll(self) -> None:
        old = self._open_segment
        if self._preparing is not None:  # Begun half a segment ago; waiting for it beats laying zeros twice.
            self._preparing.join()
            self._preparing = None
        self._open(old.header.segment + 1, self._sequence)
        old.file.close()
        log.debug("journal.rolled", segment=self._open_segment.header.segment)

    def _open(self, segment: int, first_sequence: int) -> None:
        self._open_segment: OpenSegment = self._segments.create(segment, first_sequence)
        self._allocated = self._open_segment.allocated
        self._offset = FIRST_BLOCK
        self._sequence = first_sequence

    def _grow(self, needed: int) -> None:
        """Zeros ahead of the records; they become durable with the next sync, which is this group's."""
        step = self._segments.first_bytes
        target = -(-needed // step) * step
        self._open_segment.file.allocate(self._allocated, target - self._allocated)
        self._allocated = target

    def _prepare_next(self) -> None:
        if not self._segments.has_spare:
            self._preparing = threading.Thread(target=self._prepare, name="bookie-journal-spare", daemon=True)
            self._preparing.start()

    def _prepare(self) -> None:
        try:
            self._segments.prepare_spare()
        except OSError as error:
            if error.errno in _NO_ROOM:
                log.warning("journal.no_spare", reason=str(error))  # The next segment will begin smaller.
            else:
                self._on_failure(error)
        except BaseException as error:
            self._on_failure(error)

    def _tell(self, group: list[Pending]) -> bool:
        try:
            self._loop.call_soon_threadsafe(self._acknowledge, group)
        except RuntimeError:  # The loop is closed without a stop: there is nobody left to acknowledge to.
            log.warning("journal.abandoned", records=len(group))
            return False
        return True

    # Back on the loop.

    def _seal(self) -> None:
        """After the last group before a pause comes one that means nothing, so that damage to the last is no torn tail."""
        self._seal_timer = None
        if self._stopping:
            return
        due = self._acknowledged_at + _SEAL_S
        if due > self._loop.time() or self.pending_bytes:
            self._seal_timer = self._loop.call_at(max(due, self._loop.time() + _SEAL_S / 2), self._seal)
            return
        self._sealing = True
        self.append(Kind.ENTRY, len(SEAL), (SEAL, b""), None)

    def _acknowledge(self, group: list[Pending]) -> None:
        ok = BookieStatus.OK
        if self._sealing and len(group) == 1:
            self._sealing = False
        else:
            self._acknowledged_at = self._loop.time()
            if self._seal_timer is None and not self._stopping:
                self._seal_timer = self._loop.call_later(_SEAL_S, self._seal)
        for _, size, _, done in group:
            self.pending_bytes -= size
            if done is None:
                continue
            try:
                done(ok)
            except Exception:
                log.exception("journal.acknowledgement_failed")
        if self.on_acknowledged is not None:
            self.on_acknowledged()
