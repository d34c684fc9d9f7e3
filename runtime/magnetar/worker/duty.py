"""Which of several workers runs the components: the elected one, until its session ends.

The others stand by: they send requests to it, and take over everything when it is gone.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from magnetar.environment.logs import get_logger
from magnetar.metadata.election import LeaderElection
from magnetar.metadata.errors import MetadataError
from magnetar.worker.errors import Elsewhere, NotReady, WorkerError

if TYPE_CHECKING:
    from magnetar.metadata.store import MetadataStore, Notification

LEADER_PATH: Final = "/magnetar/function-worker-leader"
FORMAT: Final = 1
RETRY_S: Final = 0.5

log = get_logger("magnetar.worker.duty")


class Duty:
    """Stands for election, and tells when this worker's duty begins and ends.

    Args:
        begin: brings back what is deployed; tried again until it succeeds or the duty is over.
        end: stops everything at once: another worker may run it by now.
    """

    def __init__(
        self,
        metadata: MetadataStore,
        worker_id: str,
        url: str,
        *,
        begin: Callable[[], Awaitable[None]],
        end: Callable[[], None],
    ) -> None:
        self._metadata = metadata
        self._begin = begin
        self._end = end
        self._url = url
        self._incarnation = uuid.uuid4().hex
        candidate = {"version": FORMAT, "worker": worker_id, "url": url, "incarnation": self._incarnation}
        self._election = LeaderElection(
            metadata, LEADER_PATH, json.dumps(candidate).encode(), self._leadership_changed
        )
        self._watch = metadata.watch(LEADER_PATH, self._heard)
        self._leader_url = ""
        self._news = asyncio.Event()
        self._settled = asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        self._beginning: asyncio.Task[None] | None = None
        self.on_duty = False

    async def start(self) -> None:
        """Stand, and wait until it is known who is on duty."""
        self._election.start()
        self._news.set()
        self._following = asyncio.get_running_loop().create_task(self._follow(), name="follow the leader")
        await self._settled.wait()

    async def stop(self) -> None:
        """Stand no longer; what ran here must be stopped already."""
        self._watch.cancel()
        for task in (self._following, self._beginning):
            if task is not None:
                task.cancel()
                await asyncio.wait((task,))
        self.on_duty = False
        self._end = _nothing
        await self._election.stop()

    def check(self) -> None:
        """
        Raises:
            Elsewhere: another worker is on duty.
            NotReady: nobody is, or this one only begins to be.
        """
        if self.on_duty:
            return
        if self._leader_url and self._leader_url != self._url:
            raise Elsewhere(self._leader_url)
        raise NotReady("no function worker is on duty yet: retry")

    def _leadership_changed(self, leading: bool) -> None:
        if leading:
            self._leader_url = (
                self._url
            )  # Whoever led before may send its clients here already: not back there.
            self._beginning = asyncio.get_running_loop().create_task(self._take(), name="take duty")
            return
        if self._beginning is not None:
            self._beginning.cancel()
        self.on_duty = False
        self._leader_url = ""
        log.warning("duty.ended")
        self._end()

    async def _take(self) -> None:
        while True:
            try:
                await self._begin()
                break
            except (MetadataError, WorkerError, OSError) as error:
                log.warning("duty.not_begun", reason=str(error), retry_s=RETRY_S)
            except Exception:
                # Whatever it is: giving up would leave the lead with a worker that does nothing.
                log.exception("duty.not_begun", retry_s=RETRY_S)
            await asyncio.sleep(RETRY_S)
        self.on_duty = True
        log.info("duty.begun", epoch=self._election.epoch)
        self._settled.set()

    def _heard(self, _: Notification) -> None:
        self._news.set()

    async def _follow(self) -> None:
        """Know where the worker on duty is found."""
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                leader = await self._election.leader()
            except MetadataError as error:
                log.info("leader.unknown", reason=str(error))
                await asyncio.sleep(RETRY_S)
                self._news.set()
                continue
            told = json.loads(leader) if leader else {}
            self._leader_url = str(told.get("url", "")) if told.get("version") == FORMAT else ""
            if leader and told.get("incarnation") != self._incarnation:
                self._settled.set()


def _nothing() -> None:
    """After the end there is nothing to end."""
