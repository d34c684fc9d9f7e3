"""`magnetar broker-stats`."""

from __future__ import annotations

from typing import Annotated

import typer

from magnetar.cli.admin_api import segment
from magnetar.cli.commands.session import api, show_json

app = typer.Typer()

_PATH = "/admin/v2/broker-stats"


@app.command("monitoring-metrics")
def monitoring_metrics() -> None:
    """Show all metrics of a broker."""
    show_json(api().get(f"{_PATH}/metrics"))


@app.command()
def topics() -> None:
    """Show the statistics of all topics that a broker serves."""
    show_json(api().get(f"{_PATH}/topics"))


@app.command("load-report")
def load_report() -> None:
    """Show how much a broker has to do."""
    show_json(api().get(f"{_PATH}/load-report"))


@app.command("allocator-stats")
def allocator_stats(
    allocator: Annotated[str, typer.Argument(help="default or ml-cache.")] = "default",
) -> None:
    """Show what memory is used for."""
    show_json(api().get(f"{_PATH}/allocator-stats/{segment(allocator)}"))


@app.command()
def mbeans() -> None:
    """Show the beans of the virtual machine, of which there is none."""
    show_json(api().get(f"{_PATH}/mbeans"))
