"""`magnetar brokers`."""

from __future__ import annotations

from typing import Annotated

import typer

from magnetar.cli.admin_api import segment
from magnetar.cli.commands.session import api, show

app = typer.Typer()

_PATH = "/admin/v2/brokers"
Key = Annotated[str, typer.Option("--config", "-c", help="Name of the setting.")]


@app.command("list")
def list_brokers(cluster: Annotated[str | None, typer.Argument(metavar="[CLUSTER]")] = None) -> None:
    """Name the active brokers."""
    show(api().get(f"{_PATH}/{segment(cluster)}" if cluster else _PATH))


@app.command("leader-broker")
def leader_broker() -> None:
    """Show which broker leads."""
    show(api().get(f"{_PATH}/leaderBroker"))


@app.command()
def healthcheck() -> None:
    """Let the broker produce and read a message."""
    show(api().get(f"{_PATH}/health"))


@app.command()
def version() -> None:
    """Show the broker's version."""
    show(api().get(f"{_PATH}/version"))


@app.command("list-dynamic-config")
def list_dynamic_config() -> None:
    """Name the settings that can be changed while brokers run."""
    show(api().get(f"{_PATH}/configuration"))


@app.command("get-all-dynamic-config")
def get_all_dynamic_config() -> None:
    """Show the settings that have been changed."""
    show(api().get(f"{_PATH}/configuration/values"))


@app.command("get-runtime-config")
def get_runtime_config() -> None:
    """Show all settings as they are."""
    show(api().get(f"{_PATH}/configuration/runtime"))


@app.command("get-internal-config")
def get_internal_config() -> None:
    """Show where brokers keep what they know."""
    show(api().get(f"{_PATH}/internal-configuration"))


@app.command("update-dynamic-config")
def update_dynamic_config(config: Key, value: Annotated[str, typer.Option("--value", "-v")]) -> None:
    """Change a setting on all brokers."""
    api().post(f"{_PATH}/configuration/{segment(config)}/{segment(value)}")


@app.command("delete-dynamic-config")
def delete_dynamic_config(config: Key) -> None:
    """Take a change back."""
    api().delete(f"{_PATH}/configuration/{segment(config)}")
