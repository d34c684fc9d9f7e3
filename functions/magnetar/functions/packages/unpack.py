"""Lays a package out on disk for the function's process."""

from __future__ import annotations

import os
import shutil
import zipfile
from pathlib import Path, PurePosixPath

from magnetar.functions.errors import PackageError
from magnetar.functions.packages.contents import PackageInfo

UNPACKED_BYTES_MAX = 2 * 1024 * 1024 * 1024
FILES_MAX = 100_000


def unpack(info: PackageInfo, into: Path) -> list[str]:
    """Unpack into the folder `into` (made anew) and return what belongs on the module path, first things first.

    A module or a pickled function stays where it is and needs no path.

    Raises:
        PackageError: the archive is broken, unreasonably large, or points outside itself.
    """
    if info.kind not in ("zip", "whl"):
        return []
    staging = into.with_name(f"{into.name}.{os.getpid()}.new")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    _extract(info.path, staging / "package")
    dependencies = []
    for number, wheel in enumerate(info.wheels):
        _extract(staging / "package" / wheel, staging / "deps" / str(number))
        dependencies.append(str(into / "deps" / str(number)))
    shutil.rmtree(into, ignore_errors=True)
    staging.rename(into)
    return [str(into / "package" / root) for root in info.roots] + dependencies


def _extract(archive_path: Path, into: Path) -> None:
    try:
        with zipfile.ZipFile(archive_path) as archive:
            entries = archive.infolist()
            if len(entries) > FILES_MAX or sum(entry.file_size for entry in entries) > UNPACKED_BYTES_MAX:
                raise PackageError(
                    f"{archive_path.name} unpacks to more than {FILES_MAX} files or {UNPACKED_BYTES_MAX} bytes"
                )
            for entry in entries:
                path = PurePosixPath(entry.filename)
                if path.is_absolute() or ".." in path.parts:
                    raise PackageError(
                        f"{archive_path.name} holds '{entry.filename}', which points outside it"
                    )
            archive.extractall(into)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise PackageError(f"{archive_path.name} cannot be unpacked: {error}") from None
