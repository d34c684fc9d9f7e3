"""Settings from a file, the environment and the command line; the later wins over the earlier."""

from __future__ import annotations

import dataclasses
import difflib
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar.cli.errors import SettingsError
from magnetar.cli.settings.setting import Setting

if TYPE_CHECKING:
    from magnetar.cli.settings.model import PlatformSettings

VARIABLES = "MAGNETAR_"
NOTHING: Mapping[str, Any] = {}


def load_settings(
    config: Path | None,
    environment: Mapping[str, str],
    options: Mapping[str, Any],
    usual: Mapping[str, Any] = NOTHING,
) -> PlatformSettings:
    """All settings of this process.

    Args:
        config: a YAML file, or one of Pulsar's `.conf` files.
        environment: MAGNETAR_PORT, MAGNETAR_BROKER__MAX_MESSAGE_BYTES and so on.
        options: of the command line, by key; None: not given.
        usual: what holds for this role where nobody says anything.
    Raises:
        SettingsError: naming file and key.
    """
    from magnetar.cli.settings.model import InvalidSettings, PlatformSettings, build

    found: dict[str, Setting] = {
        key: Setting(key, value, "what is usual for this role") for key, value in usual.items()
    }
    for setting in _in_order(config, environment, options):
        kind = _check_key(setting, PlatformSettings)
        found[setting.key] = _listed(setting, kind)
    try:
        return build(_nested(found.values()))
    except InvalidSettings as error:
        raise SettingsError("\n".join(_explain(found, *problem) for problem in error.problems)) from None


def _in_order(
    config: Path | None, environment: Mapping[str, str], options: Mapping[str, Any]
) -> Iterator[Setting]:
    if config is not None:
        yield from _from_file(config)
    yield from _from_environment(environment)
    for key, value in options.items():
        if value is not None:
            yield Setting(key, value, f"option --{key.replace('_', '-')}")


def _from_file(path: Path) -> Iterator[Setting]:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: cannot be read: {error}") from error
    if path.suffix in (".conf", ".properties"):
        from magnetar.cli.settings.pulsar_keys import read_pulsar_file

        yield from read_pulsar_file(path, text)
        return
    import yaml

    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SettingsError(f"{path}: not YAML: {error}") from error
    if values is None:
        return
    if not isinstance(values, dict):
        raise SettingsError(f"{path}: expected `key: value` lines, found {type(values).__name__}")
    yield from _flattened("", values, str(path))


def _flattened(prefix: str, values: Mapping[Any, Any], origin: str) -> Iterator[Setting]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flattened(f"{prefix}{key}.", value, origin)
        elif value is not None or not prefix:
            yield Setting(f"{prefix}{key}", value, origin)


def _from_environment(environment: Mapping[str, str]) -> Iterator[Setting]:
    from magnetar.cli.settings.model import PlatformSettings

    known = {field.name for field in dataclasses.fields(PlatformSettings)}
    for name in sorted(environment):
        if not name.startswith(VARIABLES):
            continue
        key = name.removeprefix(VARIABLES).lower().replace("__", ".")
        # Other variables of this prefix (MAGNETAR_ADMIN_URL, ...) are not settings of a server.
        if key.partition(".")[0] in known:
            yield Setting(key, environment[name], f"variable {name}")


def _nested(settings: Any) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for setting in settings:
        *sections, name = setting.key.split(".")
        step = values
        for section in sections:
            step = step.setdefault(section, {})
        step[name] = setting.value
    return values


def _listed(setting: Setting, kind: Any) -> Setting:
    """Where several values are expected, text has commas between them: a variable or an option can be nothing but text."""
    if not isinstance(setting.value, str) or typing.get_origin(kind) not in (tuple, list):
        return setting
    parts = [part.strip() for part in setting.value.split(",") if part.strip()]
    return dataclasses.replace(setting, value=parts)


def _check_key(setting: Setting, model: type[Any]) -> Any:
    """Refuse what no class knows: a key misspelt would otherwise silently change nothing. Returns its type."""
    names = setting.key.split(".")
    for depth, name in enumerate(names):
        fields = section_fields(model)
        if name not in fields:
            near = difflib.get_close_matches(name, fields, 1)
            hint = f"; did you mean {'.'.join([*names[:depth], near[0]])}?" if near else ""
            raise SettingsError(f"{setting.origin}: {setting.key}: there is no such setting{hint}")
        model = fields[name]
        is_section = bool(section_fields(model))
        if is_section and depth == len(names) - 1:
            raise SettingsError(
                f"{setting.origin}: {setting.key}: a section of settings, not {setting.value!r}"
            )
        if not is_section and depth < len(names) - 1:
            raise SettingsError(
                f"{setting.origin}: {'.'.join(names[: depth + 1])}: a single value, not a section"
            )
    return model


def section_fields(kind: Any) -> dict[str, Any]:
    """Field → type of a settings class; empty for anything that is a plain value."""
    from pydantic import BaseModel

    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return {name: field.annotation for name, field in kind.model_fields.items()}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        return {field.name: hints[field.name] for field in dataclasses.fields(kind)}
    return {}


def _explain(found: Mapping[str, Setting], key: str, message: str) -> str:
    setting = found.get(key) or next((s for s in found.values() if s.key.startswith(f"{key}.")), None)
    if setting is None:
        return f"settings: {key}: {message}"
    where = setting.key if found.get(key) else key
    return f"{setting.origin}: {where}: {message}, not {setting.value!r}"
