"""Packages are read, never run, and what they lack is said."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from magnetar.functions.errors import PackageError
from magnetar.functions.packages import inspect_package, unpack

CLASS = "class Join:\n    def process(self, input, context):\n        return input\n"
MODULE = "def process(input):\n    return input\n"


def archive(path: Path, files: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w") as made:
        for name, content in files.items():
            made.writestr(name, content)
    return path


@pytest.mark.parametrize(
    ("source", "class_name"),
    [
        (CLASS, "join.Join"),
        (CLASS, "elsewhere.Join"),
        (CLASS, "Join"),
        (MODULE, "join"),
        ("from somewhere import Join\n", "join.Join"),
        ("Join = make()\n", "join.Join"),
        ("class Join(Base):\n    pass\n", "join.Join"),
        (
            "try:\n    import x\nexcept ImportError:\n    x = None\nif x:\n    class Join(x.Y): ...\n",
            "join.Join",
        ),
        ("class Join:\n    process = other\n", "join.Join"),
    ],
)
def test_a_module_that_holds_what_is_named(tmp_path: Path, source: str, class_name: str) -> None:
    path = tmp_path / "join.py"
    path.write_text(source)
    assert inspect_package(path, class_name).kind == "py"


def test_nothing_in_a_package_is_run(tmp_path: Path) -> None:
    path = tmp_path / "join.py"
    path.write_text("raise SystemExit('ran')\n" + CLASS)
    inspect_package(path, "join.Join")


@pytest.mark.parametrize(
    ("source", "class_name", "reason"),
    [
        (CLASS, "join.Missing", "has no class 'Missing' (className 'join.Missing'); it has Join"),
        ("x = 1\n", "join.Join", "it has no class"),
        ("class Join:\n    def proces(self): ...\n", "join.Join", "has no method process"),
        ("def f(:\n", "join.Join", "is no Python module"),
        ("\0", "join.Join", "is no Python module"),
        (MODULE, "join.Missing", "has no class 'Missing'"),
    ],
)
def test_what_a_module_lacks_is_said(tmp_path: Path, source: str, class_name: str, reason: str) -> None:
    path = tmp_path / "join.py"
    path.write_text(source)
    with pytest.raises(PackageError) as error:
        inspect_package(path, class_name)
    assert reason in str(error.value)


@pytest.mark.parametrize(
    "files",
    [
        {"join.py": CLASS},
        {"src/join.py": CLASS},
        {"pack/src/join.py": CLASS, "pack/requirements.txt": "x\n", "pack/deps/a-1.whl": ""},
        {"join/__init__.py": CLASS},
    ],
)
def test_archives_in_every_layout(tmp_path: Path, files: dict[str, str]) -> None:
    info = inspect_package(archive(tmp_path / "anything.zip", files), "join.Join")
    assert info.kind == "zip"
    assert "" in info.roots
    assert (info.requirements == "x\n") == ("pack/requirements.txt" in files)


def test_a_stored_package_may_have_any_name(tmp_path: Path) -> None:
    path = archive(tmp_path / "0f3a", {"a/b.py": CLASS})
    assert inspect_package(path, "a.b.Join", "zip").kind == "zip"
    with pytest.raises(PackageError, match="of a known kind"):
        inspect_package(path, "a.b.Join")


def test_what_an_archive_lacks_is_said(tmp_path: Path) -> None:
    path = archive(tmp_path / "x.zip", {"other.py": CLASS})
    with pytest.raises(PackageError, match=r"no module for className 'join.Join': looked for join.py"):
        inspect_package(path, "join.Join")
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(PackageError, match="no readable zip archive"):
        inspect_package(path, "join.Join")
    with pytest.raises(PackageError, match="there is no package"):
        inspect_package(tmp_path / "gone.zip", "join.Join")


def test_a_pickled_function_is_read_operation_by_operation(tmp_path: Path) -> None:
    import cloudpickle

    path = tmp_path / "f.cloudpickle"
    path.write_bytes(cloudpickle.dumps(lambda value: value))
    assert inspect_package(path, "cloudpickle.function").kind == "cloudpickle"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(PackageError, match="is no pickled function"):
        inspect_package(path, "cloudpickle.function")


def test_unpacking_gives_the_module_path(tmp_path: Path) -> None:
    wheel = archive(tmp_path / "d.whl", {"dep.py": "x = 1\n"})
    with zipfile.ZipFile(tmp_path / "p.zip", "w") as made:
        made.writestr("p/src/join.py", CLASS)
        made.write(wheel, "p/deps/d.whl")
    info = inspect_package(tmp_path / "p.zip", "join.Join")
    for _ in range(2):  # A restart unpacks again.
        paths = unpack(info, tmp_path / "out")
        assert (Path(paths[0]) / "join.py").read_text() == CLASS
        assert (Path(paths[-1]) / "dep.py").exists()
    assert not list(tmp_path.glob("out.*"))


@pytest.mark.parametrize("name", ["../evil.py", "/evil.py", "a/../../evil.py"])
def test_an_archive_cannot_write_outside_its_folder(tmp_path: Path, name: str) -> None:
    info = inspect_package(archive(tmp_path / "p.zip", {"join.py": CLASS, name: ""}), "join.Join")
    with pytest.raises(PackageError, match="points outside it"):
        unpack(info, tmp_path / "out")
