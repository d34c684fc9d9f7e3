"""Finds the user's function in its package and makes it callable as `process(input, context)`."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from magnetar.functions.errors import PackageError
from magnetar.functions.process.job import Job

Process = Callable[[Any, Any], Any]


def load_function(job: Job) -> Process:
    """Load what `job.class_name` names: a class (an instance of it is made), or a module with `process(input)`.

    Unlike Apache's instance, which goes on with the bare class when its constructor raises, this lets the
    constructor's exception through: it is the reason shown in the status.

    Raises:
        PackageError: the package lacks it.
        Exception: what the package raised while it was imported, or the constructor.
    """
    if job.kind == "cloudpickle":
        with Path(job.package).open("rb") as file:
            return callable_of(pickle.load(file), job.class_name)
    module_name, _, name = job.class_name.rpartition(".")
    if job.kind == "py":
        module = _module_from_file(Path(job.package), module_name or name)
    else:
        try:
            module = importlib.import_module(module_name or name)
        except ModuleNotFoundError as error:
            if error.name is None or not (module_name or name).startswith(error.name):
                raise
            return callable_of(importlib.import_module(job.class_name), job.class_name)
    if hasattr(module, name):
        return callable_of(getattr(module, name), job.class_name)
    if job.kind != "py" and module_name:
        try:
            module = importlib.import_module(job.class_name)
        except ModuleNotFoundError:
            raise PackageError(f"module '{module_name}' has no '{name}'") from None
    return callable_of(module, job.class_name)


def load_connector(job: Job) -> Any:
    """A new source or sink, not yet opened. Raises PackageError, or what its module or constructor raised."""
    if job.kind == "builtin":
        registry = importlib.import_module(job.connector_registry)
        create = registry.create_source if job.component == "source" else registry.create_sink
        return create(job.class_name)
    module_name, _, name = job.class_name.rpartition(".")
    if job.kind == "py":
        module = _module_from_file(Path(job.package), module_name or name)
    else:
        module = importlib.import_module(module_name)
    if not hasattr(module, name):
        raise PackageError(f"module '{module.__name__}' has no class '{name}'")
    return getattr(module, name)()


def callable_of(found: Any, name: str) -> Process:
    """`found` as `process(input, context)`.

    Raises:
        PackageError: it has no `process` and cannot be called.
    """
    if inspect.isclass(found):
        found = found()
    process = getattr(found, "process", None)
    if process is None:
        if not callable(found) or isinstance(found, ModuleType):
            raise PackageError(f"'{name}' has no process(input, context)")
        process = found
    if not callable(process):
        raise PackageError(f"'{name}': process is {type(process).__name__}, not a function")
    takes_context = _takes_two(process)
    if takes_context:
        result: Process = process
        return result

    def without_context(value: Any, context: Any) -> Any:
        return process(value)

    return without_context


def _takes_two(process: Callable[..., Any]) -> bool:
    try:
        inspect.signature(process).bind(None, None)
    except TypeError:
        return False
    except ValueError:  # A builtin that does not tell its signature, such as str.upper.
        return False
    return True


def _module_from_file(path: Path, name: str) -> ModuleType:
    """Import one file under the name its config gives it, whatever the file itself is called."""
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PackageError(f"{path.name} is no Python module")
    module = importlib.util.module_from_spec(spec)
    parent, _, child = name.rpartition(".")
    if parent and parent not in sys.modules:
        package = ModuleType(parent)
        package.__path__ = []
        sys.modules[parent] = package
        setattr(package, child, module)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
