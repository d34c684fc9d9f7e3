"""The code of components, on disk: `packages/<sha-256>/<filename>`, written whole and synced before it counts.

Nothing here opens a package to run it; `magnetar.functions.packages` looks inside without importing.
"""

from __future__ import annotations

import asyncio
import re
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path

from magnetar.worker.component import Package
from magnetar.worker.drafts import Draft, make_directory, sync_directory
from magnetar.worker.errors import BadRequest

KINDS = {
    ".py": "py",
    ".zip": "zip",
    ".whl": "whl",
    ".pkl": "cloudpickle",
    ".pickle": "cloudpickle",
    ".cloudpickle": "cloudpickle",
}
UNSAFE_IN_FILENAMES = re.compile(r"[^\w.+\-]")
FILENAME_CHARACTERS_MAX = 128


class PackageStore:
    """Packages by the hash of their content.

    A package counts as used while a component names it, or while `holding` it until one does.
    """

    def __init__(self, directory: Path, bytes_max: int) -> None:
        self._directory = directory
        self._incoming = directory / "incoming"
        self._held: Counter[str] = Counter()
        self._lock = asyncio.Lock()  # Nothing is stored or let go of while unused packages are looked for.
        self.bytes_max = bytes_max

    def prepare(self) -> None:
        """Make the directories and sweep up uploads that a crash cut short. Blocks."""
        shutil.rmtree(self._incoming, ignore_errors=True)
        make_directory(self._incoming)

    @asynccontextmanager
    async def holding(self, upload: Upload) -> AsyncIterator[Package]:
        """Store a complete upload and keep it for as long as the block lasts. Raises BadRequest: it is empty."""
        async with self._lock:
            package = await upload.finish()
            self._held[package.sha256] += 1
        try:
            yield package
        finally:
            async with self._lock:
                self._held[package.sha256] -= 1

    async def remove_unused(
        self,
        used: Callable[[], Awaitable[Collection[str]]],
        elsewhere: Callable[[Collection[str]], Awaitable[None]] | None = None,
    ) -> None:
        """Remove the packages whose hash is not among `used()` and not held; with `elsewhere` their copies too."""
        async with self._lock:
            keep = frozenset(await used()) | frozenset(self._held.elements())
            await asyncio.to_thread(self._sweep, keep)
            if elsewhere is not None:
                await elsewhere(keep)

    def begin(self, filename: str) -> Upload:
        """Raises BadRequest: no kind of package is named so."""
        name = safe_filename(filename)
        kind = KINDS.get(Path(name).suffix.lower())
        if kind is None:
            raise BadRequest(
                f"package {filename!r} is of no known kind: a function is a .py, .zip or .whl file, "
                "or one that cloudpickle wrote (.pkl)"
            )
        return Upload(self._directory, self._incoming, name, kind, self.bytes_max)

    def path(self, package: Package) -> Path:
        return self._directory / package.sha256 / package.filename

    def _sweep(self, used: frozenset[str]) -> None:
        for entry in self._directory.iterdir():
            if entry != self._incoming and entry.name not in used:
                shutil.rmtree(entry)


class Upload:
    """A package on its way in."""

    def __init__(self, directory: Path, incoming: Path, filename: str, kind: str, bytes_max: int) -> None:
        self._directory = directory
        self._filename = filename
        self._kind = kind
        self._draft = Draft(incoming, f"package {filename!r}", bytes_max)

    async def write(self, data: bytes) -> None:
        """Raises PackageTooLarge."""
        await self._draft.write(data)

    async def finish(self) -> Package:
        """Make it durable under its hash. Raises BadRequest: it is empty."""
        if self._draft.size == 0:
            raise BadRequest(f"package {self._filename!r} is empty")
        digest = await self._draft.complete()
        home = self._directory / digest
        await asyncio.to_thread(make_directory, home)
        await self._draft.move_to(home / self._filename)
        await asyncio.to_thread(
            sync_directory, self._directory
        )  # Whoever made `home` may have been killed there.
        return Package(self._kind, self._filename, digest)

    async def discard(self) -> None:
        """Leave nothing of an upload that was not finished."""
        await self._draft.discard()


def safe_filename(filename: str) -> str:
    """The last part of a name that somebody else chose, fit to be a file of ours."""
    name = UNSAFE_IN_FILENAMES.sub("_", filename.replace("\\", "/").rpartition("/")[2])[
        -FILENAME_CHARACTERS_MAX:
    ]
    if not name.strip("._"):
        raise BadRequest(f"{filename!r} is no file name")
    return name
