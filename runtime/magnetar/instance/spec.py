"""What the worker asks a host to run: the JSON file named by `--spec`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from magnetar.functions.config import FunctionConfig, SinkConfig, SourceConfig
from magnetar.functions.errors import ConfigError
from magnetar.instance.errors import SpecUnusable

SPEC_VERSION = 1
ComponentConfig: TypeAlias = FunctionConfig | SourceConfig | SinkConfig
_CONFIGS: Mapping[str, type[FunctionConfig] | type[SourceConfig] | type[SinkConfig]] = {
    "function": FunctionConfig,
    "source": SourceConfig,
    "sink": SinkConfig,
}
PACKAGE_KINDS = ("py", "zip", "whl", "cloudpickle", "builtin")


@dataclass(frozen=True, slots=True)
class Spec:
    """One component and which of its instances to run."""

    service_url: str
    web_url: str
    cluster: str
    worker_id: str
    component: Literal["function", "source", "sink"]
    config: ComponentConfig
    package_kind: str
    package_path: str
    instances: tuple[int, ...]
    epoch: int
    """The same over restarts and updates; higher for every re-creation."""
    log_dir: Path
    work_dir: Path

    @classmethod
    def read(cls, path: Path) -> Spec:
        """Read a spec. Raises SpecUnusable with what is wrong with it."""
        try:
            return cls.parse(json.loads(path.read_text()))
        except (OSError, ValueError) as error:
            raise SpecUnusable(f"{path}: {error}") from error

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Spec:
        """The spec of parsed JSON. Raises SpecUnusable."""
        if data.get("version") != SPEC_VERSION:
            raise SpecUnusable(
                f"a spec of version {data.get('version')!r}; this Magnetar reads version {SPEC_VERSION}"
            )
        try:
            component = data["component"]
            if component not in _CONFIGS:
                raise SpecUnusable(f"component {component!r} is none of {', '.join(_CONFIGS)}")
            config = _CONFIGS[component].from_dict(data["config"])
            config.validate()
            package = data["package"]
            kind = package["kind"]
            if kind not in PACKAGE_KINDS:
                raise SpecUnusable(f"package kind {kind!r} is none of {', '.join(PACKAGE_KINDS)}")
            return cls(
                service_url=data["service_url"],
                web_url=data["web_url"],
                cluster=data.get("cluster") or "standalone",
                worker_id=str(data.get("worker_id") or ""),
                component=component,
                config=config,
                package_kind=kind,
                package_path=str(package.get("path") or ""),
                instances=tuple(int(instance) for instance in data["instances"]),
                epoch=int(data["epoch"]),
                log_dir=Path(data["log_dir"]),
                work_dir=Path(data["work_dir"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise SpecUnusable(f"the spec lacks or misstates {error}") from error
        except ConfigError as error:
            raise SpecUnusable(f"config: {error}") from error
