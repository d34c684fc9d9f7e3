"""Reads a package to see whether it holds the class its config names. Nothing in it is executed.

Layouts: one module (`.py`); an archive (`.zip`) whose root, `src/` or `NAME/src/` holds the modules, with
`NAME/deps/*.whl` beside it (Apache's layout); a wheel (`.whl`); a function pickled by `magnetar.functions.deploy`
(`.cloudpickle`).
"""

from __future__ import annotations

import ast
import pickletools
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal, TypeAlias

from magnetar.functions.errors import PackageError

Kind: TypeAlias = Literal["py", "zip", "whl", "cloudpickle"]
KINDS: dict[str, Kind] = {
    ".py": "py",
    ".zip": "zip",
    ".whl": "whl",
    ".cloudpickle": "cloudpickle",
    ".pkl": "cloudpickle",
}
SOURCE_BYTES_MAX = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class PackageInfo:
    """What was found in a package."""

    path: Path
    kind: Kind
    class_name: str
    roots: tuple[str, ...] = ()
    """Folders inside the archive that belong on the module path; the empty string is its top."""
    wheels: tuple[str, ...] = ()
    """Dependencies that the archive brings along."""
    requirements: str | None = None
    """The archive's requirements.txt, if it has one."""


def inspect_package(path: Path, class_name: str, kind: str | None = None) -> PackageInfo:
    """Look for `class_name` (`module.Class`, or a module with `process`) in the package at `path`.

    Args:
        path: the package's file.
        class_name: as the config has it.
        kind: what it is, where the file's suffix does not tell.
    Raises:
        PackageError: it is no package, or lacks the module, the class or its `process`; the message says which.
    """
    found = KINDS.get(f".{kind}" if kind else path.suffix.lower())
    if not path.is_file():
        raise PackageError(f"there is no package at {path}")
    if found == "py":
        _check_source(path.name, _read_source(path), class_name)
        return PackageInfo(path, "py", class_name)
    if found == "cloudpickle":
        _check_pickle(path)
        return PackageInfo(path, "cloudpickle", class_name)
    if found is not None:
        return _inspect_archive(path, class_name, found)
    known = ", ".join(sorted(set(KINDS) - {".pkl"}))
    raise PackageError(f"'{path.name}' is no package of a known kind: {known}")


def _read_source(path: Path) -> bytes:
    if path.stat().st_size > SOURCE_BYTES_MAX:
        raise PackageError(f"{path.name} is larger than {SOURCE_BYTES_MAX} bytes: no Python module is")
    return path.read_bytes()


def _inspect_archive(path: Path, class_name: str, kind: Kind) -> PackageInfo:
    try:
        with zipfile.ZipFile(path) as archive:
            names = [info.filename for info in archive.infolist() if not info.is_dir()]
            roots = _roots(names)
            module, source = _find_module(archive, roots, class_name)
            _check_source(module, source, class_name)
            requirements = next((n for n in names if PurePosixPath(n).name == "requirements.txt"), None)
            return PackageInfo(
                path=path,
                kind=kind,
                class_name=class_name,
                roots=roots,
                wheels=tuple(
                    n for n in names if n.endswith(".whl") and PurePosixPath(n).parent.name == "deps"
                ),
                requirements=archive.read(requirements).decode("utf-8", "replace") if requirements else None,
            )
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise PackageError(f"{path.name} is no readable {kind} archive: {error}") from None


def _roots(names: Iterable[str]) -> tuple[str, ...]:
    """Where modules may lie: `NAME/src`, `src`, a wheel's `purelib`, and the top."""
    found: dict[str, None] = {}
    for name in names:
        parts = PurePosixPath(name).parts
        if len(parts) > 2 and parts[1] == "src":
            found[f"{parts[0]}/src"] = None
        elif len(parts) > 1 and parts[0] == "src":
            found["src"] = None
        elif len(parts) > 2 and parts[0].endswith(".data") and parts[1] in ("purelib", "platlib"):
            found[f"{parts[0]}/{parts[1]}"] = None
    return (*found, "")


def _find_module(archive: zipfile.ZipFile, roots: tuple[str, ...], class_name: str) -> tuple[str, bytes]:
    """The module of `module.Class`, else `class_name` as a module itself."""
    names = set(archive.namelist())
    tried = []
    for module in dict.fromkeys((class_name.rpartition(".")[0], class_name)):
        if not module:
            continue
        for root in roots:
            for suffix in (".py", "/__init__.py"):
                candidate = str(PurePosixPath(root, module.replace(".", "/"))) + suffix
                if candidate in names:
                    if archive.getinfo(candidate).file_size > SOURCE_BYTES_MAX:
                        raise PackageError(
                            f"{candidate} is larger than {SOURCE_BYTES_MAX} bytes: no Python module is"
                        )
                    return candidate, archive.read(candidate)
                tried.append(candidate)
    raise PackageError(
        f"{Path(archive.filename or 'the package').name} has no module for className '{class_name}': "
        f"looked for {', '.join(tried)}"
    )


def _check_source(file: str, source: bytes, class_name: str) -> None:
    """Raises PackageError unless the module defines the class (with a `process`) or, being one itself, `process`."""
    try:
        tree = ast.parse(source, file)
    except (SyntaxError, ValueError) as error:
        raise PackageError(f"{file} is no Python module: {error}") from None
    bound = dict(_bindings(tree.body))
    name = class_name.rpartition(".")[2]
    if name in bound:
        node = bound[name]
        if isinstance(node, ast.ClassDef) and not node.bases and "process" not in dict(_bindings(node.body)):
            raise PackageError(f"{file}: class '{name}' has no method process(self, input, context)")
        return
    if "process" in bound and not _names_a_class(class_name, file):
        return
    classes = [n for n, node in bound.items() if isinstance(node, ast.ClassDef)]
    hint = f"it has {', '.join(classes)}" if classes else "it has no class"
    raise PackageError(f"{file} has no class '{name}' (className '{class_name}'); {hint}")


def _names_a_class(class_name: str, file: str) -> bool:
    """Whether `class_name` means a class in `file`, and not `file` as a whole."""
    if "." not in class_name:
        return False
    module = class_name.replace(".", "/")
    return not file.endswith((f"{module}.py", f"{module}/__init__.py"))


def _bindings(body: list[ast.stmt]) -> Iterator[tuple[str, ast.AST]]:
    """The names a module or class binds at its top, also below `if`, `try` and `with`."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name.partition(".")[0], node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for part in ast.walk(target):
                    if isinstance(part, ast.Name):
                        yield part.id, node
        else:
            for block in ("body", "orelse", "finalbody"):
                yield from _bindings(getattr(node, block, []))
            for handler in getattr(node, "handlers", []):
                yield from _bindings(handler.body)


def _check_pickle(path: Path) -> None:
    """Raises PackageError unless the file is one whole pickle. Its operations are read, not carried out."""
    try:
        with path.open("rb") as file:
            for _ in pickletools.genops(file):
                pass
    except (ValueError, EOFError) as error:
        raise PackageError(f"{path.name} is no pickled function: {error}") from None
