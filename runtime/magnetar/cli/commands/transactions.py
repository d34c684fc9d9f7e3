"""`magnetar transactions`: coordinators and transactions, under the names of pulsar-admin."""

from __future__ import annotations

from typing import Annotated

import typer

from magnetar.cli.admin_api import segment
from magnetar.cli.commands.session import api, checked, show, show_json, topic_name
from magnetar.cli.units import seconds

app = typer.Typer()

_BASE = "/admin/v3/transactions"

Topic = Annotated[str, typer.Option("--topic", "-t", help="The topic.")]
Subscription = Annotated[str, typer.Option("--sub-name", "-s", help="The subscription.")]
Most = Annotated[int, typer.Option("--most-sig-bits", "-m", help="The coordinator: the first number.")]
Least = Annotated[int, typer.Option("--least-sig-bits", "-l", help="The second number.")]
Coordinator = Annotated[int | None, typer.Option("--coordinator-id", "-c", help="Default: all.")]
OneCoordinator = Annotated[int, typer.Option("--coordinator-id", "-c", help="The coordinator.")]


@app.command("coordinators-list")
def coordinators_list() -> None:
    """Every coordinator, and which broker serves it."""
    show_json(api().get(f"{_BASE}/coordinators"))


@app.command("coordinator-stats")
def coordinator_stats(coordinator: Coordinator = None) -> None:
    """How many transactions coordinators have."""
    show_json(api().get(f"{_BASE}/coordinatorStats", coordinatorId=coordinator))


@app.command("coordinator-internal-stats")
def coordinator_internal_stats(coordinator: OneCoordinator) -> None:
    """A coordinator's log."""
    show_json(api().get(f"{_BASE}/coordinatorInternalStats/{coordinator}"))


@app.command("scale-transactionCoordinators")
def scale(
    replicas: Annotated[int, typer.Option("--replicas", "-r", help="How many there shall be.")],
) -> None:
    """Have more coordinators."""
    show(api().post(f"{_BASE}/transactionCoordinator/replicas", replicas))


@app.command("transaction-metadata")
def transaction_metadata(most: Most, least: Least) -> None:
    """What is known of a transaction."""
    show_json(api().get(f"{_BASE}/transactionMetadata/{most}/{least}"))


@app.command("slow-transactions")
def slow_transactions(
    time: Annotated[str, typer.Option("--time", "-t", help="Open for longer than this: 90s, 5m, 1h.")],
    coordinator: Coordinator = None,
) -> None:
    """Transactions that are open for long."""
    longer_than_ms = 1000 * checked(seconds, time, "--time")
    show_json(api().get(f"{_BASE}/slowTransactions/{longer_than_ms}", coordinatorId=coordinator))


@app.command("abort-transaction")
def abort_transaction(most: Most, least: Least) -> None:
    """Abort a transaction, whoever began it."""
    show(api().post(f"{_BASE}/abortTransaction/{most}/{least}"))


@app.command("transaction-buffer-stats")
def transaction_buffer_stats(topic: Topic) -> None:
    """What a topic knows of transactions."""
    show_json(api().get(f"{_BASE}/transactionBufferStats/{_place(topic)}"))


@app.command("transaction-in-buffer-stats")
def transaction_in_buffer_stats(topic: Topic, most: Most, least: Least) -> None:
    """What a topic knows of one transaction."""
    show_json(api().get(f"{_BASE}/transactionInBufferStats/{_place(topic)}/{most}/{least}"))


@app.command("pending-ack-stats")
def pending_ack_stats(topic: Topic, subscription: Subscription) -> None:
    """What a subscription holds for transactions."""
    show_json(api().get(f"{_BASE}/pendingAckStats/{_place(topic)}/{segment(subscription)}"))


@app.command("pending-ack-internal-stats")
def pending_ack_internal_stats(topic: Topic, subscription: Subscription) -> None:
    """The log of a subscription's provisional acknowledgements."""
    show_json(api().get(f"{_BASE}/pendingAckInternalStats/{_place(topic)}/{segment(subscription)}"))


@app.command("transaction-in-pending-ack-stats")
def transaction_in_pending_ack_stats(
    topic: Topic, subscription: Subscription, most: Most, least: Least
) -> None:
    """What a subscription holds for one transaction."""
    place = f"{_place(topic)}/{segment(subscription)}/{most}/{least}"
    show_json(api().get(f"{_BASE}/transactionInPendingAckStats/{place}"))


def _place(text: str) -> str:
    name = topic_name(text)
    return f"{segment(name.tenant)}/{segment(name.namespace)}/{segment(name.local_name)}"
