"""The commands of `magnetar topics` that concern a subscription."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from magnetar.cli.admin_api import segment
from magnetar.cli.commands.session import api, checked, key_values, message_position, show, topic_path
from magnetar.cli.errors import CommandError
from magnetar.cli.units import seconds

Topic = Annotated[str, typer.Argument(metavar="TOPIC")]
Subscription = Annotated[str, typer.Option("--subscription", "-s")]
MessageId = Annotated[
    str | None, typer.Option("--messageId", "--message-id", "-m", help="ledger:entry, earliest or latest.")
]


def add_to(app: typer.Typer) -> None:
    """Make them commands of `app`."""
    app.command("subscriptions")(subscriptions)
    app.command("create-subscription")(create_subscription)
    app.command("unsubscribe")(unsubscribe)
    app.command("skip")(skip)
    app.command("clear-backlog")(clear_backlog)
    app.command("expire-messages")(expire_messages)
    app.command("expire-messages-all-subscriptions")(expire_messages_all_subscriptions)
    app.command("reset-cursor")(reset_cursor)
    app.command("get-subscription-properties")(get_subscription_properties)
    app.command("update-subscription-properties")(update_subscription_properties)


def subscriptions(topic: Topic) -> None:
    """Name a topic's subscriptions."""
    show(api().get(f"{topic_path(topic)}/subscriptions"))


def create_subscription(
    topic: Topic,
    subscription: Subscription,
    message_id: MessageId = None,
    properties: Annotated[list[str] | None, typer.Option("--property", "-p", help="key=value")] = None,
    replicated: Annotated[bool, typer.Option("--replicated", "-r")] = False,
) -> None:
    """Create a subscription."""
    body: dict[str, object] = dict(message_position(message_id or "latest"))
    if properties:
        body["properties"] = key_values(properties, "--property")
    api().request("PUT", _path(topic, subscription), body=body, query={"replicated": replicated or None})


def unsubscribe(
    topic: Topic,
    subscription: Subscription,
    force: Annotated[bool, typer.Option("--force", "-f", help="Disconnect its consumers.")] = False,
) -> None:
    """Delete a subscription."""
    api().delete(_path(topic, subscription), force=force or None)


def skip(
    topic: Topic, subscription: Subscription, count: Annotated[int, typer.Option("--count", "-n")]
) -> None:
    """Acknowledge the next messages unread."""
    api().post(f"{_path(topic, subscription)}/skip/{count}")


def clear_backlog(topic: Topic, subscription: Subscription) -> None:
    """Acknowledge all that waits."""
    api().post(f"{_path(topic, subscription)}/skip_all")


def expire_messages(
    topic: Topic,
    subscription: Subscription,
    expire_time: Annotated[
        str | None, typer.Option("--expireTime", "--expire-time", "-t", help="Older than: 10m.")
    ] = None,
    position: Annotated[str | None, typer.Option("--position", "-p", help="Up to ledger:entry.")] = None,
) -> None:
    """Acknowledge what is too old."""
    path = f"{_path(topic, subscription)}/expireMessages"
    if (expire_time is None) == (position is None):
        raise CommandError("say either --expire-time or --position")
    if expire_time is not None:
        api().post(f"{path}/{checked(seconds, expire_time, '--expire-time')}")
    elif position is not None:
        api().post(path, message_position(position))


def expire_messages_all_subscriptions(
    topic: Topic, expire_time: Annotated[str, typer.Option("--expireTime", "--expire-time", "-t")]
) -> None:
    """Acknowledge what is too old for all subscriptions."""
    age = checked(seconds, expire_time, "--expire-time")
    api().post(f"{topic_path(topic)}/all_subscription/expireMessages/{age}")


def reset_cursor(
    topic: Topic,
    subscription: Subscription,
    time_ago: Annotated[str | None, typer.Option("--time", "-t", help="Go back by: 10m, 3h, 2d.")] = None,
    message_id: MessageId = None,
    exclude: Annotated[bool, typer.Option("--exclude-reset-position", "-e")] = False,
) -> None:
    """Let a subscription begin again, further back or further on."""
    path = f"{_path(topic, subscription)}/resetcursor"
    if (time_ago is None) == (message_id is None):
        raise CommandError("say either --time or --message-id")
    if message_id is not None:
        api().post(path, {**message_position(message_id), "isExcluded": exclude})
    elif time_ago is not None:
        age_ms = checked(seconds, time_ago, "--time") * 1000
        api().post(f"{path}/{time.time_ns() // 1_000_000 - age_ms}")


def get_subscription_properties(topic: Topic, subscription: Subscription) -> None:
    """Show a subscription's properties."""
    show(api().get(f"{_path(topic, subscription)}/properties"))


def update_subscription_properties(
    topic: Topic,
    subscription: Subscription,
    properties: Annotated[list[str] | None, typer.Option("--property", "-p", help="key=value")] = None,
    clear: Annotated[bool, typer.Option("--clear", "-c", help="Take all away.")] = False,
) -> None:
    """Replace a subscription's properties."""
    if clear == bool(properties):
        raise CommandError("say either --property or --clear")
    api().put(f"{_path(topic, subscription)}/properties", key_values(properties, "--property"))


def _path(topic: str, subscription: str) -> str:
    return f"{topic_path(topic)}/subscription/{segment(subscription)}"
