"""Files that administrators upload and download by a path of their own choosing; nothing runs them."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from magnetar.worker.drafts import Draft, make_directory
from magnetar.worker.errors import BadRequest, NotFound

NAME_BYTES_MAX = 240
COMPLETE = "f-"
"""What the names of complete files begin with."""


class UploadArea:
    """One flat directory; a path is one quoted file name in it, so none leads anywhere else."""

    def __init__(self, directory: Path, bytes_max: int) -> None:
        self._directory = directory
        self._bytes_max = bytes_max

    def prepare(self) -> None:
        """Make the directory and sweep up uploads that a crash cut short. Blocks."""
        make_directory(self._directory)
        for entry in self._directory.iterdir():
            if not entry.name.startswith(COMPLETE):
                entry.unlink()

    async def begin(self) -> Draft:
        """What may be written to until its path is known."""
        return Draft(self._directory, "the upload", self._bytes_max)

    async def store(self, path: str, draft: Draft) -> None:
        """Raises BadRequest."""
        target = self._target(path)
        await draft.complete()
        await draft.move_to(target)

    def find(self, path: str) -> Path:
        """Raises NotFound, BadRequest."""
        target = self._target(path)
        if not target.is_file():
            raise NotFound(f"nothing was uploaded as {path!r}")
        return target

    def _target(self, path: str) -> Path:
        name = COMPLETE + quote(path.strip("/"), safe="")
        if not path.strip("/") or len(name) > NAME_BYTES_MAX:
            raise BadRequest(f"path {path!r} is empty or too long")
        return self._directory / name
