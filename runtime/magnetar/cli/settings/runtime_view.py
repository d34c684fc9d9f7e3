"""What a running platform tells of its settings: each under our key, and under Pulsar's where the value is the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from magnetar.cli.settings.pulsar_keys import TRANSLATIONS, is_taken_as_it_is

if TYPE_CHECKING:
    from magnetar.cli.settings.model import PlatformSettings


def told(settings: PlatformSettings) -> dict[str, str]:
    """All settings as text."""
    ours: dict[str, str] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        section = _section(value)
        if section is None:
            ours[field.name] = _text(value)
        else:
            ours.update({f"{field.name}.{name}": _text(each) for name, each in section.items()})
    store = settings.metadata_store or f"rocksdb:{settings.data / 'metadata'}"
    theirs = {
        key: ours[translation.key]
        for key, translation in TRANSLATIONS.items()
        if is_taken_as_it_is(translation) and translation.key in ours
    }
    return {**ours, **theirs, "metadataStoreUrl": store, "configurationMetadataStoreUrl": store}


def _section(value: Any) -> Mapping[str, Any] | None:
    if hasattr(value, "model_dump"):
        dumped: dict[str, Any] = value.model_dump()
        return dumped
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
