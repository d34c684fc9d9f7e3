"""The deployed components, in the metadata store.

`/magnetar/functions/<tenant>/<namespace>/<name>`: one of them, whichever kind, so that a name is taken once.
`/magnetar/function-epoch`: the last epoch given out; one counter for all, so that deleted names need no tombstones.
Every change is a compare-and-set against what was read.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from magnetar.environment.logs import get_logger
from magnetar.worker.component import Component, ComponentName
from magnetar.worker.errors import BadRequest, Conflict, PlatformUnavailable

if TYPE_CHECKING:
    from magnetar.metadata.store import MetadataStore

ROOT = "/magnetar/functions"
EPOCH = "/magnetar/function-epoch"
EPOCH_FORMAT = 1
MUST_NOT_EXIST = -1

log = get_logger("magnetar.worker.registry")


class Registry:
    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata

    async def get(self, name: ComponentName) -> Component | None:
        stored = await self._metadata.get(_path(name))
        return None if stored is None else Component.from_json(name, stored.value, stored.version)

    async def create(self, component: Component) -> Component:
        """Raises Conflict: the name was taken meanwhile."""
        return await self._put(component, MUST_NOT_EXIST)

    async def change(self, component: Component) -> Component:
        """Store `component` in place of what it was read as. Raises Conflict: it has changed since."""
        return await self._put(component, component.metadata_version)

    async def remove(self, component: Component) -> None:
        from magnetar.metadata.errors import BadVersion, NotFound

        try:
            await self._metadata.delete(_path(component.name), expected_version=component.metadata_version)
        except BadVersion as error:
            raise Conflict(f"{component.name} was changed meanwhile") from error
        except NotFound:  # A removal whose answer was lost.
            return

    async def names(self) -> AsyncIterator[ComponentName]:
        for tenant in await self._metadata.children(ROOT):
            for namespace in await self._metadata.children(f"{ROOT}/{tenant}"):
                for name in await self._metadata.children(f"{ROOT}/{tenant}/{namespace}"):
                    yield ComponentName(unquote(tenant), unquote(namespace), unquote(name))

    async def all(self) -> AsyncIterator[Component]:
        """Raises PlatformUnavailable: one of them cannot be read."""
        async for name in self.names():
            component = await self.get(name)
            if component is not None:
                yield component

    async def readable(self) -> AsyncIterator[Component]:
        """All but those that cannot be read, which are logged."""
        async for name in self.names():
            component = await self._get_if_readable(name)
            if component is not None:
                yield component

    async def in_namespace(self, tenant: str, namespace: str) -> AsyncIterator[Component]:
        """By name; without those that cannot be read, which are logged."""
        for name in await self._metadata.children(
            f"{ROOT}/{quote(tenant, safe='')}/{quote(namespace, safe='')}"
        ):
            component = await self._get_if_readable(ComponentName(tenant, namespace, unquote(name)))
            if component is not None:
                yield component

    async def _get_if_readable(self, name: ComponentName) -> Component | None:
        try:
            return await self.get(name)
        except PlatformUnavailable as error:
            log.error("component.unreadable", component=str(name), reason=str(error))
            return None

    async def next_epoch(self) -> int:
        """A number higher than any given out before."""
        from magnetar.metadata.errors import AlreadyExists, BadVersion

        while True:
            stored = await self._metadata.get(EPOCH)
            epoch = 1
            if stored is not None:
                fields = json.loads(stored.value)
                if fields["version"] != EPOCH_FORMAT:
                    raise PlatformUnavailable(f"{EPOCH} is of the newer format {fields['version']}")
                epoch = fields["epoch"] + 1
            value = json.dumps({"version": EPOCH_FORMAT, "epoch": epoch}).encode()
            try:
                await self._metadata.put(
                    EPOCH, value, expected_version=stored.version if stored else MUST_NOT_EXIST
                )
            except (AlreadyExists, BadVersion):  # Another worker took this one.
                continue
            return epoch

    async def _put(self, component: Component, expected_version: int) -> Component:
        from magnetar.metadata.errors import AlreadyExists, BadVersion, NotFound, ValueTooLarge

        try:
            version = await self._metadata.put(
                _path(component.name), component.to_json(), expected_version=expected_version
            )
        except (AlreadyExists, BadVersion, NotFound) as error:
            raise Conflict(f"{component.name} was changed meanwhile") from error
        except ValueTooLarge as error:
            raise BadRequest(f"the configuration of {component.name} is too large: {error}") from error
        return replace(component, metadata_version=version)


def _path(name: ComponentName) -> str:
    return (
        f"{ROOT}/{quote(name.tenant, safe='')}/{quote(name.namespace, safe='')}/{quote(name.name, safe='')}"
    )
