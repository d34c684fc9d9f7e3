"""No two modules import each other, at import or later: an arrow that comes back hides who needs whom.

Imports for type checkers only do not count: a core may name the shell that drives it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PORTIONS = ("platform", "functions", "connectors", "runtime")


def modules() -> dict[str, Path]:
    """Every module of the house by its dotted name; a package goes by its own."""
    found = {}
    for portion in PORTIONS:
        for path in (ROOT / portion / "magnetar").rglob("*.py"):
            name = ".".join(path.relative_to(ROOT / portion).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


def imported(node: ast.AST) -> Iterator[str]:
    """What is imported below `node`, in functions too."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    for child in ast.iter_child_nodes(node):
        yield from imported(child)


def arrows(house: dict[str, Path]) -> dict[str, set[str]]:
    graph = {}
    for name, path in house.items():
        # A package's face hands on names of its modules; they are named where they live.
        wanted = {each for each in imported(ast.parse(path.read_text())) if each in house}
        faces = {each for each in wanted if house[each].name == "__init__.py"}
        graph[name] = wanted - faces - {name} if path.name != "__init__.py" else set()
    return graph


def test_no_modules_import_each_other() -> None:
    house = modules()
    assert len(house) > 300
    try:
        TopologicalSorter(arrows(house)).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))
