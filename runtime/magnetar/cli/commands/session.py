"""What every command shares: the platform it asks, and the way it shows answers."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from magnetar.cli.admin_api import AdminApi, segment
from magnetar.cli.errors import CommandError
from magnetar.naming import NamespaceName, NamingError, TopicName

DEFAULT_SERVICE_URL = "pulsar://127.0.0.1:6650"


@dataclass(frozen=True, slots=True)
class Session:
    """Which platform the command speaks to."""

    admin_url: str
    service_url: str
    token: str | None


_current: ContextVar[Session] = ContextVar("session")


def use(chosen: Session) -> None:
    """Said once, before the command runs."""
    _current.set(chosen)


def session() -> Session:
    """That of the command that is running."""
    return _current.get()


def api() -> AdminApi:
    """The REST API of the platform that is asked."""
    asked = session()
    return AdminApi(asked.admin_url, token=asked.token)


def show(value: Any) -> None:
    """A list of names one a line, text as it is, nothing as nothing, and everything else as JSON."""
    if value is None:
        return
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        for item in value:
            print(item)
    elif isinstance(value, str):
        print(value)
    else:
        show_json(value)


def show_json(value: Any) -> None:
    """JSON, coloured where a person looks on."""
    if sys.stdout.isatty():
        from rich import print_json

        print_json(data=value)
    else:
        print(json.dumps(value, indent=2))


def namespace_path(text: str) -> str:
    """`/admin/v2/namespaces/t/n`."""
    try:
        name = NamespaceName.parse(text)
    except NamingError as error:
        raise CommandError(str(error)) from error
    return f"/admin/v2/namespaces/{segment(name.tenant)}/{segment(name.local)}"


def topic_name(text: str) -> TopicName:
    """The topic that a user means. Short names are of public/default."""
    try:
        return TopicName.parse(text)
    except NamingError as error:
        raise CommandError(str(error)) from error


def topic_segments(text: str) -> str:
    """`persistent/t/n/topic`, ready for a path."""
    name = topic_name(text)
    return f"{name.domain}/{segment(name.tenant)}/{segment(name.namespace)}/{segment(name.local_name)}"


def topic_path(text: str) -> str:
    """`/admin/v2/persistent/t/n/topic`."""
    return f"/admin/v2/{topic_segments(text)}"


def split_list(values: Sequence[str] | None) -> list[str]:
    """An option that may be given several times, each with several values between commas."""
    return [part.strip() for value in values or () for part in value.split(",") if part.strip()]


def key_values(values: Sequence[str] | None, option: str) -> dict[str, str]:
    """`key=value`, several times or between commas."""
    pairs: dict[str, str] = {}
    for text in split_list(values):
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise CommandError(f"{option}: expected key=value, not {text!r}")
        pairs[key] = value
    return pairs


def json_object(text: str, option: str) -> dict[str, Any]:
    """An option that holds a JSON object."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise CommandError(f"{option}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CommandError(f"{option}: expected a JSON object, not {text!r}")
    return value


def message_position(text: str) -> dict[str, int]:
    """`latest`, `earliest` or `ledger:entry[:partition[:batch index]]`, as the REST API takes it."""
    if text in ("earliest", "latest"):
        end = -1 if text == "earliest" else 2**63 - 1
        return {"ledgerId": end, "entryId": end, "partitionIndex": -1}
    try:
        numbers = [int(part) for part in text.split(":")]
    except ValueError:
        numbers = []
    if not 2 <= len(numbers) <= 4:
        raise CommandError(f"{text!r} is not a message id: write ledger:entry, earliest or latest")
    names = ("ledgerId", "entryId", "partitionIndex", "batchIndex")
    return {"partitionIndex": -1, **dict(zip(names, numbers, strict=False))}


def checked(convert: Any, text: str, option: str) -> int:
    """A time or size that a user wrote."""
    try:
        return int(convert(text))
    except ValueError as error:
        raise CommandError(f"{option}: {error}") from error
