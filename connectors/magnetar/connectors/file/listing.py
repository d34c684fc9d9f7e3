"""Which files a path stands for, in which order, and what each is called in producer names."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import stat
from dataclasses import dataclass

from magnetar.connectors.errors import SourceUnreadable
from magnetar.connectors.file.settings import FileSettings


@dataclass(frozen=True, slots=True)
class InputFile:
    path: str
    partition_id: str


def list_files(settings: FileSettings) -> list[InputFile]:
    """The regular, visible files of `settings.path`, by name; the same order on every machine and at every start.

    Raises SourceUnreadable: nothing is there, and nothing can be expected to come.
    """
    path = os.path.abspath(settings.path)
    if os.path.isdir(path):
        found = [entry.path for entry in os.scandir(path) if not entry.name.startswith(".")]
    elif os.path.lexists(path):
        found = [path]
        if not os.path.isfile(path):
            raise SourceUnreadable(path, "is not a regular file")
    elif glob.has_magic(path):
        found = glob.glob(path, recursive=True)
        if not found and not settings.follow:
            raise SourceUnreadable(path, "no file matches this pattern")
    else:
        raise SourceUnreadable(path, "no such file or directory")
    return [InputFile(name, partition_id(name, settings)) for name in sorted(found) if _is_regular(name)]


def partition_id(path: str, settings: FileSettings) -> str:
    """A name for `path` read in this way.

    Positions mean something else in another file, format or order, so each of these is another partition.
    """
    way: list[object] = [path, settings.format, settings.sort_by or []]
    digest = hashlib.sha256(json.dumps(way).encode()).hexdigest()[:12]
    return f"{os.path.basename(path)[:64]}-{digest}"


def _is_regular(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:  # Removed since it was listed.
        return False
