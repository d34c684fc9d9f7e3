"""The commands of `magnetar topics` that look at single messages."""

from __future__ import annotations

import json
from http.client import HTTPMessage
from typing import Annotated

import typer

from magnetar.cli.admin_api import segment
from magnetar.cli.commands.session import api, show, topic_path
from magnetar.cli.errors import RequestRefused

Topic = Annotated[str, typer.Argument(metavar="TOPIC")]
_PREFIX = "x-pulsar-"


def add_to(app: typer.Typer) -> None:
    """Make them commands of `app`."""
    app.command("peek-messages")(peek_messages)
    app.command("get-message-by-id")(get_message_by_id)
    app.command("examine-messages")(examine_messages)
    app.command("last-message-id")(last_message_id)
    app.command("get-message-id")(get_message_id)


def peek_messages(
    topic: Topic,
    subscription: Annotated[str, typer.Option("--subscription", "-s")],
    count: Annotated[int, typer.Option("--count", "-n")] = 1,
) -> None:
    """Show the next entries of a subscription, without consuming them."""
    path = f"{topic_path(topic)}/subscription/{segment(subscription)}/position"
    for position in range(1, count + 1):
        try:
            headers, content = api().get_raw(f"{path}/{position}")
        except RequestRefused as refused:
            if refused.status == 404 and position > 1:
                return  # There are no more.
            raise
        _show_entry(headers, content)


def get_message_by_id(
    topic: Topic,
    ledger_id: Annotated[int, typer.Option("--ledgerId", "--ledger-id", "-l")],
    entry_id: Annotated[int, typer.Option("--entryId", "--entry-id", "-e")],
) -> None:
    """Show one entry."""
    _show_entry(*api().get_raw(f"{topic_path(topic)}/ledger/{ledger_id}/entry/{entry_id}"))


def examine_messages(
    topic: Topic,
    initial_position: Annotated[
        str, typer.Option("--initialPosition", "--initial-position", "-i")
    ] = "latest",
    message_position: Annotated[int, typer.Option("--messagePosition", "--message-position", "-m")] = 1,
) -> None:
    """Show the n-th entry from the beginning or the end."""
    path = f"{topic_path(topic)}/examinemessage"
    _show_entry(
        *api().get_raw(path, {"initialPosition": initial_position, "messagePosition": message_position})
    )


def last_message_id(topic: Topic) -> None:
    """Show the id of the latest message."""
    show(api().get(f"{topic_path(topic)}/lastMessageId"))


def get_message_id(
    topic: Topic,
    datetime_ms: Annotated[int, typer.Option("--datetime", "-d", help="Milliseconds since 1970.")],
) -> None:
    """Show the id of the first message published then or later."""
    show(api().get(f"{topic_path(topic)}/messageid/{datetime_ms}"))


def _show_entry(headers: HTTPMessage, content: bytes) -> None:
    facts = {name.lower().removeprefix(_PREFIX): value for name, value in headers.items()}
    if "num-batch-message" in facts:
        print(f"Batch Message ID: {facts.get('message-id', '?')}, {facts['num-batch-message']} messages")
    else:
        print(f"Message ID: {facts.get('message-id', '?')}")
    for name in ("publish-time", "event-time", "producer-name", "sequence-id", "partition-key"):
        if name in facts:
            print(f"{name}: {facts[name]}")
    properties = facts.get("property")
    if properties:
        print(f"properties: {json.dumps(json.loads(properties))}")
    print(content.decode("utf-8", "backslashreplace"))
    print()
