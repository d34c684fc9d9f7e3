"""How a component's process is launched: which program, told what, writing where."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from magnetar.worker.component import Component, ComponentName, Kind
from magnetar.worker.launching import LaunchPlan
from magnetar.worker.log_file import LogFile
from magnetar.worker.packages import PackageStore
from magnetar.worker.scheduling import Wanted
from magnetar.worker.settings import WorkerSettings

SPEC_FORMAT = 1
INSTANCE_HOST = "magnetar.instance"
SPARK_WINDOW = "magnetar.spark.window"


@dataclass(frozen=True, slots=True)
class Planner:
    """Makes launch plans for the components of one worker."""

    settings: WorkerSettings
    packages: PackageStore
    service_url: str
    web_url: str

    def wanted(self, component: Component) -> Wanted:
        windowed = bool(component.config.get("windowConfig"))
        timeout_s = self.settings.spark_start_timeout_s if windowed else self.settings.start_timeout_s
        return Wanted(component.revision, component.running_instances, timeout_s)

    def plan(self, component: Component, wanted: Wanted) -> LaunchPlan:
        settings = self.settings
        work_dir = self.work_dir(component.kind, component.name, component.epoch)
        log = self.log(component.kind, component.name)
        package = component.package
        if package is not None:
            path = package.filename if package.builtin else str(self.packages.path(package).resolve())
        return LaunchPlan(
            module=SPARK_WINDOW if component.config.get("windowConfig") else INSTANCE_HOST,
            spec={
                "version": SPEC_FORMAT,
                "service_url": self.service_url,
                "web_url": self.web_url,
                "cluster": settings.cluster,
                "worker_id": settings.worker_id,
                "component": component.kind.value,
                "config": component.config,
                "package": package and {"kind": package.kind, "path": path},
                "instances": list(wanted.instances),
                "epoch": component.epoch,
                "log_dir": str(log.path.parent),
                "work_dir": str(work_dir),
            },
            work_dir=work_dir,
            log=log,
        )

    def log(self, kind: Kind, name: ComponentName) -> LogFile:
        directory = self._place("logs", kind, name)
        return LogFile(directory / "host.log", self.settings.log_bytes_max, self.settings.logs_kept)

    def work_dir(self, kind: Kind, name: ComponentName, epoch: int) -> Path:
        """What a component keeps between restarts, a Spark checkpoint say. A re-created one begins without."""
        return self._place("work", kind, name) / f"epoch-{epoch}"

    def _place(self, area: str, kind: Kind, name: ComponentName) -> Path:
        parts = (quote(part, safe="") for part in (name.tenant, name.namespace, name.name))
        return self.settings.data_dir.resolve().joinpath(area, f"{kind.value}s", *parts)
