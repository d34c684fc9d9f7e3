"""`magnetar sources`."""

from __future__ import annotations

import typer

from magnetar.cli.commands.components import COMMON, Kind, add_component_commands, pairs, setting
from magnetar.cli.commands.session import api, show

app = typer.Typer()

KIND = Kind(
    path="sources",
    noun="source",
    options=(
        *COMMON,
        setting("topicName", "--destination-topic-name", help="Topic it writes."),
        setting("configs", "--source-config", convert=pairs, help="JSON: the connector's own settings."),
        setting("serdeClassName", "--deserialization-classname"),
        setting("schemaType", "--schema-type", "-st"),
        setting("producerConfig", "--producer-config", convert=pairs, help="JSON."),
        setting("batchSourceConfig", "--batch-source-config", convert=pairs, help="JSON."),
        setting("batchBuilder", "--batch-builder"),
        setting("sourceType", "--source-type", help="A built-in connector, by name."),
    ),
    package_options=(setting("archive", "--archive", "-a", help="builtin://name, a file here, or a URL."),),
    config_file_option="--source-config-file",
)

add_component_commands(app, KIND)


@app.command("available-sources")
def available_sources() -> None:
    """Show the built-in source connectors."""
    show(api().get("/admin/v3/sources/builtinsources"))
