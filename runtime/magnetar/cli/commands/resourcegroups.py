"""`magnetar resourcegroups`."""

from __future__ import annotations

from typing import Annotated

import typer

from magnetar.cli.admin_api import segment
from magnetar.cli.commands.session import api, show, show_json

app = typer.Typer()

_PATH = "/admin/v2/resourcegroups"
Group = Annotated[str, typer.Argument(metavar="GROUP")]
MessagesIn = Annotated[int | None, typer.Option("--msg-publish-rate", help="Messages a second that come in.")]
BytesIn = Annotated[int | None, typer.Option("--byte-publish-rate", help="Bytes a second that come in.")]
MessagesOut = Annotated[
    int | None, typer.Option("--msg-dispatch-rate", help="Messages a second that go out.")
]
BytesOut = Annotated[int | None, typer.Option("--byte-dispatch-rate", help="Bytes a second that go out.")]


@app.command("list")
def list_groups() -> None:
    """Name all groups."""
    show(api().get(_PATH))


@app.command()
def get(group: Group) -> None:
    """Show a group's limits."""
    show_json(api().get(f"{_PATH}/{segment(group)}"))


@app.command()
def create(
    group: Group,
    msg_publish_rate: MessagesIn = None,
    byte_publish_rate: BytesIn = None,
    msg_dispatch_rate: MessagesOut = None,
    byte_dispatch_rate: BytesOut = None,
) -> None:
    """Make a group; what is not given is not limited."""
    given = _limits(msg_publish_rate, byte_publish_rate, msg_dispatch_rate, byte_dispatch_rate)
    api().put(f"{_PATH}/{segment(group)}", given)


@app.command()
def update(
    group: Group,
    msg_publish_rate: MessagesIn = None,
    byte_publish_rate: BytesIn = None,
    msg_dispatch_rate: MessagesOut = None,
    byte_dispatch_rate: BytesOut = None,
) -> None:
    """Change a group's limits; what is not given stays."""
    platform = api()
    known = platform.get(f"{_PATH}/{segment(group)}") or {}
    given = _limits(msg_publish_rate, byte_publish_rate, msg_dispatch_rate, byte_dispatch_rate)
    platform.put(f"{_PATH}/{segment(group)}", {**known, **given})


@app.command()
def delete(group: Group) -> None:
    """Delete a group that no namespace is in."""
    api().delete(f"{_PATH}/{segment(group)}")


def _limits(
    messages_in: int | None, bytes_in: int | None, messages_out: int | None, bytes_out: int | None
) -> dict[str, int]:
    fields = {
        "publishRateInMsgs": messages_in,
        "publishRateInBytes": bytes_in,
        "dispatchRateInMsgs": messages_out,
        "dispatchRateInBytes": bytes_out,
    }
    return {name: value for name, value in fields.items() if value is not None}
