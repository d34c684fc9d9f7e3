"""`magnetar schemas`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from magnetar.cli.admin_api import segment
from magnetar.cli.commands.session import api, show, topic_name
from magnetar.cli.errors import CommandError

app = typer.Typer()

Topic = Annotated[str, typer.Argument(metavar="TOPIC")]
File = Annotated[Path, typer.Option("--filename", "-f", help="JSON with type, schema and properties.")]


@app.command()
def get(
    topic: Topic,
    version: Annotated[int | None, typer.Option("--version", "-v", help="Default: latest.")] = None,
) -> None:
    """Show a topic's schema."""
    path = f"{_path(topic)}/schema"
    show(api().get(path if version is None else f"{path}/{version}"))


@app.command()
def upload(topic: Topic, filename: File) -> None:
    """Give a topic a schema."""
    show(api().post(f"{_path(topic)}/schema", _read(filename)))


@app.command()
def delete(topic: Topic, force: Annotated[bool, typer.Option("--force", "-f")] = False) -> None:
    """Take a topic's schema away."""
    show(api().delete(f"{_path(topic)}/schema", force=force or None))


@app.command()
def compatibility(topic: Topic, filename: File) -> None:
    """Ask whether a schema would be accepted."""
    show(api().post(f"{_path(topic)}/compatibility", _read(filename)))


def _path(text: str) -> str:
    name = topic_name(text)
    return f"/admin/v2/schemas/{segment(name.tenant)}/{segment(name.namespace)}/{segment(name.local_name)}"


def _read(file: Path) -> object:
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise CommandError(f"{file}: {error}") from error
