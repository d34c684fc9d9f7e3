"""`magnetar sinks`."""

from __future__ import annotations

import typer

from magnetar.cli.commands.components import (
    COMMON,
    INPUTS,
    Kind,
    add_component_commands,
    pairs,
    setting,
    whole,
)
from magnetar.cli.commands.session import api, show

app = typer.Typer()

KIND = Kind(
    path="sinks",
    noun="sink",
    options=(
        *COMMON,
        *INPUTS,
        setting("configs", "--sink-config", convert=pairs, help="JSON: the connector's own settings."),
        setting("sourceSubscriptionName", "--subs-name", help="Name of its subscription."),
        setting("sourceSubscriptionPosition", "--subs-position", help="Latest or Earliest."),
        setting("topicToSerdeClassName", "--custom-serde-inputs", convert=pairs),
        setting("topicToSchemaType", "--custom-schema-inputs", convert=pairs),
        setting("negativeAckRedeliveryDelayMs", "--negative-ack-redelivery-delay-ms", convert=whole),
        setting("sinkType", "--sink-type", help="A built-in connector, by name."),
    ),
    package_options=(setting("archive", "--archive", "-a", help="builtin://name, a file here, or a URL."),),
    config_file_option="--sink-config-file",
)

add_component_commands(app, KIND)


@app.command("available-sinks")
def available_sinks() -> None:
    """Show the built-in sink connectors."""
    show(api().get("/admin/v3/sinks/builtinsinks"))
