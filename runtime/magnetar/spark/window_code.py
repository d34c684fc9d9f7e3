"""Lays the package of a window function out where Spark's Python workers can import it. Nothing in it is executed."""

from __future__ import annotations

import shutil
from pathlib import Path

from magnetar.functions.packages import inspect_package, unpack
from magnetar.spark.user_window import PICKLED


def lay_out(package: Path, kind: str, class_name: str, into: Path) -> tuple[str, tuple[str, ...]]:
    """Prepare a package.

    Args:
        package: the stored package; its file may have any name.
        kind: py, zip, whl or cloudpickle.
        class_name: as configured: `module.Class`.
        into: a folder of the job's own, made anew.
    Returns:
        What `user_window.load` takes: the class name, and what belongs on the module path.
    Raises:
        PackageError: the package is broken or lacks the class.
    """
    info = inspect_package(package, class_name, kind)
    if info.kind in ("zip", "whl"):
        return class_name, tuple(unpack(info, into))
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    if info.kind == "cloudpickle":
        shutil.copyfile(package, into / PICKLED)
        return str(into / PICKLED), ()
    module = class_name.rpartition(".")[0] or class_name
    target = into.joinpath(*module.split(".")).with_suffix(".py")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(package, target)
    return class_name, (str(into),)
