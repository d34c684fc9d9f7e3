"""Topic names in configs: as much of their grammar as a config can be checked for without the platform."""

from __future__ import annotations

import re

from magnetar.functions.errors import ConfigError

DOMAINS = ("persistent", "non-persistent")
_NAME = re.compile(r"[-=:.\w]+", re.ASCII)
_PARTITION = re.compile(r"-partition-\d+$")


def full_name(field: str, text: str) -> str:
    """`domain://tenant/namespace/topic` of any accepted spelling. Raises ConfigError."""
    domain, separator, rest = text.partition("://")
    if not separator:
        domain, rest = "persistent", text
        if "/" not in text:
            rest = f"public/default/{text}"
    parts = rest.split("/", 2)
    if domain not in DOMAINS:
        raise ConfigError(field, f"'{text}': a topic is persistent:// or non-persistent://")
    if len(parts) != 3 or not parts[2].strip() or not all(_NAME.fullmatch(part) for part in parts[:2]):
        raise ConfigError(
            field, f"'{text}' is no topic: write TOPIC, TENANT/NAMESPACE/TOPIC or persistent://… in full"
        )
    return f"{domain}://{rest}"


def check_topic(field: str, text: str | None) -> None:
    """Raises ConfigError unless `text` is a topic name (or None)."""
    if text is not None:
        full_name(field, text)


def check_pattern(field: str, text: str | None) -> None:
    """Raises ConfigError unless `text` is a regular expression of topics of one namespace (or None)."""
    if text is None:
        return
    full_name(field, text)
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(field, f"'{text}' is no regular expression: {error}") from None


def base_name(name: str) -> str:
    """The name without `-partition-N`."""
    return _PARTITION.sub("", name)
