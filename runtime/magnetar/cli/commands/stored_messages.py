"""The commands of `magnetar topics` that look at single messages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from http.client import HTTPMessage
from typing import TYPE_CHECKING, Annotated

import typer

from magnetar.cli.admin_api import segment
from magnetar.cli.commands.session import api, checked, message_position, show, topic_path
from magnetar.cli.errors import RequestRefused
from magnetar.cli.units import iso_time, timestamp_ms

if TYPE_CHECKING:
    from magnetar.protocol.pulsar_pb2 import SingleMessageMetadata

Topic = Annotated[str, typer.Argument(metavar="TOPIC")]
_PREFIX = "x-pulsar-"


def add_to(app: typer.Typer) -> None:
    """Make them commands of `app`."""
    app.command("peek-messages")(peek_messages)
    app.command("get-message-by-id")(get_message_by_id)
    app.command("examine-messages")(examine_messages)
    app.command("last-message-id")(last_message_id)
    app.command("get-message-id")(get_message_id)
    app.command("get-backlog-size")(get_backlog_size)


def peek_messages(
    topic: Topic,
    subscription: Annotated[str, typer.Option("--subscription", "-s")],
    count: Annotated[int, typer.Option("--count", "-n", min=1)] = 1,
) -> None:
    """Show the next messages of a subscription, without consuming them."""
    path = f"{topic_path(topic)}/subscription/{segment(subscription)}/position"
    position, left = 1, count
    while left > 0:
        try:
            headers, content = api().get_raw(f"{path}/{position}")
        except RequestRefused as refused:
            if refused.status == 404 and position > 1:
                return  # There are no more.
            raise
        left -= _show_entry(headers, content, left)
        position += 1


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
    datetime: Annotated[
        str, typer.Option("--datetime", "-d", help="2026-06-28T16:53:08Z, or milliseconds since 1970.")
    ],
) -> None:
    """Show the id of the first message published then or later."""
    show(api().get(f"{topic_path(topic)}/messageid/{checked(timestamp_ms, datetime, '--datetime')}"))


def get_backlog_size(
    topic: Topic,
    message_id: Annotated[
        str, typer.Option("--messageId", "--message-id", "-m", help="ledger:entry, earliest or latest.")
    ],
) -> None:
    """Show how many bytes lie from a message on."""
    show(api().put(f"{topic_path(topic)}/backlogSize", message_position(message_id)))


def _show_entry(headers: HTTPMessage, content: bytes, most: int | None = None) -> int:
    """Show the messages of an entry, at most so many. Returns how many those were."""
    facts = {name.lower().removeprefix(_PREFIX): value for name, value in headers.items()}
    entry = facts.get("message-id", "?")
    members = _members(facts, content)
    if members is None:
        _show_message(f"Message ID: {entry}", facts, content)
        return 1
    shown = 0
    for own, payload in members:
        if shown == most:
            break
        _show_message(f"Batch Message ID: {entry}:{shown}", facts | own, payload)
        shown += 1
    return shown


def _show_message(title: str, facts: Mapping[str, str], payload: bytes) -> None:
    print(title)
    for name in ("publish-time", "event-time", "producer-name", "sequence-id", "partition-key"):
        if name in facts:
            print(f"{name}: {facts[name]}")
    properties = facts.get("property")
    if properties:
        print(f"properties: {json.dumps(json.loads(properties))}")
    print(payload.decode("utf-8", "backslashreplace"))
    print()


def _members(facts: Mapping[str, str], content: bytes) -> Iterable[tuple[dict[str, str], bytes]] | None:
    """The messages of a batch, each with what it says of itself; None: it is none, or cannot be opened."""
    if "num-batch-message" not in facts:
        return None
    from magnetar.protocol.batch import iterate_batch
    from magnetar.protocol.errors import ProtocolError
    from magnetar.protocol.pulsar_pb2 import MessageMetadata

    # The platform has decompressed it.
    head = MessageMetadata(num_messages_in_batch=int(facts["num-batch-message"]))
    try:
        return [(_facts_of(member), bytes(payload)) for member, payload in iterate_batch(head, content)]
    except ProtocolError:
        return None  # Encrypted: shown as it lies there.


def _facts_of(member: SingleMessageMetadata) -> dict[str, str]:
    """What a message of a batch says of itself, under the names that a single one has in the answer's head."""
    facts: dict[str, str] = {}
    if member.event_time:
        facts["event-time"] = iso_time(member.event_time)
    if member.HasField("sequence_id"):
        facts["sequence-id"] = str(member.sequence_id)
    if member.HasField("partition_key"):
        facts["partition-key"] = member.partition_key
    if member.properties:
        facts["property"] = json.dumps({pair.key: pair.value for pair in member.properties})
    return facts
