"""The directory that `--data` names: whose it is, and that nobody else runs on it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from magnetar.cli.errors import CannotServe
from magnetar.environment.directory_lock import DirectoryLock
from magnetar.environment.disk import Disk
from magnetar.environment.errors import DirectoryInUse

VERSION = 1
MARKER = "MAGNETAR"
"""A JSON file: {"version": 1, "role": "bookie", "id": "bookie-1f2e...", "cluster": "9a7c..."}. A cluster's instance id
is there once the directory has served it."""


@dataclass(slots=True)
class DataDirectory:
    """Held from `open` to `release`."""

    path: Path
    id: str
    """What the process that owns this directory calls itself, the same for ever."""
    _role: str
    _disk: Disk
    _lock: DirectoryLock

    @classmethod
    def open(cls, disk: Disk, path: Path, role: str) -> DataDirectory:
        """Take the directory for `role`, making it where there is none.

        Raises:
            CannotServe: in use, of a newer version, of another role, or not a directory to write to.
        """
        path = path.absolute()
        try:
            disk.make_directory(path)
            lock = DirectoryLock(path)
        except DirectoryInUse as error:
            raise CannotServe(str(error)) from error
        except OSError as error:
            raise CannotServe(
                f"data directory {path} cannot be used: {error.strerror or error}; "
                "choose with --data a directory that this user may write to"
            ) from error
        try:
            return cls(path, _identity(disk, path / MARKER, role), role, disk, lock)
        except BaseException:
            lock.release()
            raise

    def belongs_to(self, instance_id: str, cluster: str) -> None:
        """Note which cluster the directory serves, or make sure that it is the one it has served so far.

        Raises:
            CannotServe: it is another cluster's.
        """
        marker = self.path / MARKER
        fields = json.loads(self._disk.read_file(marker))
        if fields.get("cluster") == instance_id:
            return
        if "cluster" in fields:
            raise CannotServe(
                f"data directory {self.path} belongs to a {self._role} of another cluster ({fields['cluster']}) than the "
                f"metadata store ({cluster!r}, {instance_id}): correct --metadata-store, or choose another --data"
            )
        self._disk.replace_file(marker, json.dumps({**fields, "cluster": instance_id}).encode() + b"\n")

    def release(self) -> None:
        self._lock.release()


def _identity(disk: Disk, marker: Path, role: str) -> str:
    if not disk.exists(marker):
        identity = f"{role}-{os.urandom(6).hex()}"
        fields = {"version": VERSION, "role": role, "id": identity}
        disk.replace_file(marker, json.dumps(fields).encode() + b"\n")
        return identity
    try:
        fields = json.loads(disk.read_file(marker))
        version, owner, identity = fields["version"], str(fields["role"]), str(fields["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise CannotServe(f"{marker} is damaged ({error}); is this a data directory of Magnetar?") from error
    if not isinstance(version, int) or version > VERSION:
        raise CannotServe(
            f"data directory {marker.parent} has format {version}, this version of Magnetar knows up to "
            f"{VERSION}: start the newer version"
        )
    if owner != role:
        raise CannotServe(f"data directory {marker.parent} belongs to a {owner}; choose another for a {role}")
    return identity
