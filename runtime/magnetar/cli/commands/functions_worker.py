"""`magnetar functions-worker`."""

from __future__ import annotations

import typer

from magnetar.cli.commands.session import api, show_json

app = typer.Typer()

_WORKER, _STATS = "/admin/v2/worker", "/admin/v2/worker-stats"


@app.command("get-cluster")
def get_cluster() -> None:
    """Name the workers."""
    show_json(api().get(f"{_WORKER}/cluster"))


@app.command("get-cluster-leader")
def get_cluster_leader() -> None:
    """Show which worker leads."""
    show_json(api().get(f"{_WORKER}/cluster/leader"))


@app.command("get-function-assignments")
def get_function_assignments() -> None:
    """Show which instance runs on which worker."""
    show_json(api().get(f"{_WORKER}/assignments"))


@app.command("function-stats")
def function_stats() -> None:
    """Show the statistics of all that runs on a worker."""
    show_json(api().get(f"{_STATS}/functionsmetrics"))


@app.command("monitoring-metrics")
def monitoring_metrics() -> None:
    """Show the metrics of a worker."""
    show_json(api().get(f"{_STATS}/metrics"))


@app.command()
def rebalance() -> None:
    """Spread instances over the workers anew."""
    api().put(f"{_WORKER}/rebalance")
