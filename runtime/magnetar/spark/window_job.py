"""Runs one window query from its checkpoint until it is told to stop, it fails, or its inputs have ended."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar.environment.logs import get_logger
from magnetar.naming import TopicName
from magnetar.spark.admin_api import AdminApi
from magnetar.spark.offsets import ENDED
from magnetar.spark.window_code import lay_out
from magnetar.spark.window_place import checkpoint_of, producer_prefix
from magnetar.spark.window_plan import WindowPlan, plan_window

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

log = get_logger("magnetar.spark")

POLL_S = 0.25


@dataclass(slots=True)
class JobStatus:
    """What the worker shows of a window job. Written by the job's thread, read by the control server's."""

    running: bool = False
    ended: bool = False
    rows_received: int = 0
    rows_without_time: int = 0
    batches: int = 0
    last_batch_ms: int = 0
    failure: str = ""
    started_at: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What the worker asks for: the file named by `--spec`."""

    config: Mapping[str, Any]
    service_url: str
    web_url: str
    package: Path
    package_kind: str
    work_dir: Path
    epoch: int
    master: str

    @classmethod
    def read(cls, path: Path) -> JobSpec:
        """Read the JSON that the worker wrote (version 1; see `magnetar.worker`)."""
        data = json.loads(path.read_text())
        if data.get("version") != 1:
            raise ValueError(
                f"{path}: version {data.get('version')!r} of a job spec; this Magnetar reads version 1"
            )
        options = data["config"].get("customRuntimeOptions") or "{}"
        options = json.loads(options) if isinstance(options, str) else options
        return cls(
            config=data["config"],
            service_url=data["service_url"],
            web_url=data["web_url"],
            package=Path(data["package"]["path"]),
            package_kind=data["package"]["kind"],
            work_dir=Path(data["work_dir"]),
            epoch=int(data["epoch"]),
            master=str(options.get("master", "local[2]")),
        )


class WindowJob:
    """One query and what is known of it.

    Args:
        on_end: called when the inputs have ended and their last windows are out.
    """

    def __init__(self, spec: JobSpec, on_end: Callable[[], None]) -> None:
        self._spec = spec
        self._announce_end = on_end
        self._plan = _with_full_names(plan_window(spec.config))
        self._admin = AdminApi(spec.web_url)
        self._stop = threading.Event()
        self._last_batch = -1
        self.status = JobStatus()

    def stop(self) -> None:
        """Ask the job to end after its present micro-batch. Safe in a signal handler."""
        self._stop.set()

    def run(self, ready: Callable[[], None]) -> None:
        """Run until stopped or ended.

        Args:
            ready: called once, without arguments, when the query runs.
        Raises:
            Exception: why the query failed.
        """
        from magnetar.spark.session import start_session
        from magnetar.spark.window_query import start_query

        if self._plan.output:
            self._admin.create_topic(self._plan.output)
            self._admin.enable_deduplication(self._plan.output)
        spec = self._spec
        plan = self._plan
        paths: tuple[str, ...] = ()
        if not plan.aggregates:
            code = spec.work_dir / "code"
            class_name, paths = lay_out(spec.package, spec.package_kind, plan.class_name, code)
            plan = replace(plan, class_name=class_name)
        name = "/".join(str(spec.config.get(part)) for part in ("tenant", "namespace", "name"))
        marker = spec.work_dir / f"ended-{self._spec.epoch}"
        if marker.exists():
            self._finish(ready)
            return
        spark = start_session(name, spec.work_dir, master=spec.master, python_path=paths)
        try:
            query = start_query(
                spark,
                plan,
                service_url=spec.service_url,
                admin_url=spec.web_url,
                checkpoint=checkpoint_of(spec.work_dir, spec.epoch),
                import_paths=paths,
                producer_prefix=producer_prefix(spec.work_dir, name, spec.epoch),
            )
            self.status.running = True
            log.info("window.started", function=name, query_id=str(query.id))
            ready()
            ended = self._follow(query)
            query.stop()
        finally:
            spark.stop()
        if ended:
            marker.touch()
            self._finish(None)

    def _follow(self, query: StreamingQuery) -> bool:
        """Wait; True when the inputs ended and their last windows are out."""
        while not self._stop.is_set():
            if not query.isActive:
                failure = query.exception()
                raise (
                    failure
                    if failure is not None
                    else RuntimeError(f"the query {query.id} stopped by itself")
                )
            for progress in query.recentProgress:
                if int(progress.batchId) > self._last_batch:
                    self._last_batch = int(progress.batchId)
                    self._note(progress)
            if self.status.ended:
                return True
            self._stop.wait(POLL_S)
        return False

    def _note(self, progress: Any) -> None:
        status = self.status
        observed = progress.observedMetrics.get("magnetar")
        if observed is not None:
            status.rows_received += observed["rows"]
            status.rows_without_time += observed["rows_without_time"]
        status.batches += 1
        status.last_batch_ms = int(time.time() * 1000)
        # The batch after the one that brought the end closes the last windows: its watermark is in the far future.
        offset = json.loads(progress.sources[0].endOffset or "{}")
        watermark = str(progress.eventTime.get("watermark", ""))
        status.ended = bool(offset.get(ENDED)) and watermark >= "8000"

    def _finish(self, ready: Callable[[], None] | None) -> None:
        if self._plan.output and self._spec.config.get("terminateOutput"):
            self._admin.terminate(self._plan.output)
        self.status.running, self.status.ended = True, True
        log.info("window.ended", output=self._plan.output, rows=self.status.rows_received)
        if ready is not None:
            ready()
        self._announce_end()
        self._stop.wait()


def _with_full_names(plan: WindowPlan) -> WindowPlan:
    return replace(
        plan,
        inputs=tuple(str(TopicName.parse(topic)) for topic in plan.inputs),
        output=str(TopicName.parse(plan.output)) if plan.output else None,
    )
