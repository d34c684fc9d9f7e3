"""`magnetar functions`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from magnetar.cli.admin_api import segment
from magnetar.cli.commands.components import (
    COMMON,
    INPUTS,
    ConfigOption,
    Fqn,
    Instance,
    Kind,
    Name,
    Namespace,
    Tenant,
    add_component_commands,
    component_path,
    instance_path,
    pairs,
    setting,
    switch,
    truth,
    whole,
)
from magnetar.cli.commands.session import api, json_object, show
from magnetar.cli.errors import CommandError

app = typer.Typer()

KIND = Kind(
    path="functions",
    noun="function",
    options=(
        *COMMON,
        *INPUTS,
        setting("output", "--output", "-o", help="Topic it writes."),
        setting("userConfig", "--user-config", convert=pairs, help="JSON the function reads at run time."),
        setting("subName", "--subs-name", help="Name of its subscription."),
        setting("subscriptionPosition", "--subs-position", help="Latest or Earliest."),
        ConfigOption("skipToLatest", ("--skip-to-latest",), switch, switch=True),
        setting("forwardSourceMessageProperty", "--forward-source-message-property", convert=truth),
        setting(
            "terminateOutput",
            "--terminate-output",
            convert=truth,
            help="End the output when all inputs have.",
        ),
        setting(
            "customSerdeInputs", "--custom-serde-inputs", convert=pairs, help="JSON: topic to SerDe class."
        ),
        setting("customSchemaInputs", "--custom-schema-inputs", convert=pairs, help="JSON: topic to schema."),
        setting("customSchemaOutputs", "--custom-schema-outputs", convert=pairs),
        setting("outputSerdeClassName", "--output-serde-classname"),
        setting("outputSchemaType", "--schema-type", "-st"),
        setting("producerConfig", "--producer-config", convert=pairs, help="JSON."),
        setting("batchBuilder", "--batch-builder"),
        setting("runtime", "--runtime", help="PYTHON."),
        setting("windowConfig.windowLengthCount", "--window-length-count", convert=whole),
        setting("windowConfig.windowLengthDurationMs", "--window-length-duration-ms", convert=whole),
        setting("windowConfig.slidingIntervalCount", "--sliding-interval-count", convert=whole),
        setting("windowConfig.slidingIntervalDurationMs", "--sliding-interval-duration-ms", convert=whole),
        setting("windowConfig.timestampExtractorClassName", "--timestamp-extractor"),
        setting("windowConfig.maxLagMs", "--max-lag-ms", convert=whole),
    ),
    package_options=(
        setting("py", "--py", help="A .py, .zip or .whl: a file here, or a URL the platform fetches."),
        setting("jar", "--jar"),
        setting("go", "--go"),
    ),
    config_file_option="--function-config-file",
)

add_component_commands(app, KIND)

Key = Annotated[str, typer.Option("--key", "-k")]


@app.command()
def stats(
    tenant: Tenant = None,
    namespace: Namespace = None,
    name: Name = None,
    fqfn: Fqn = None,
    instance_id: Instance = None,
) -> None:
    """Show how much a function has received, processed and failed at."""
    show(
        api().get(f"{component_path(KIND, tenant, namespace, name, fqfn)}{instance_path(instance_id)}/stats")
    )


@app.command()
def trigger(
    tenant: Tenant = None,
    namespace: Namespace = None,
    name: Name = None,
    fqfn: Fqn = None,
    trigger_value: Annotated[str | None, typer.Option("--trigger-value", "-v")] = None,
    trigger_file: Annotated[Path | None, typer.Option("--trigger-file")] = None,
    topic: Annotated[str | None, typer.Option("--topic", help="Which input, if it has several.")] = None,
) -> None:
    """Send a message through a function and show what comes out."""
    if (trigger_value is None) == (trigger_file is None):
        raise CommandError("say either --trigger-value or --trigger-file")
    value = trigger_value if trigger_file is None else trigger_file.read_text()
    fields: dict[str, object] = {"data": value}
    if topic is not None:
        fields["topic"] = topic
    show(api().send_form("POST", f"{component_path(KIND, tenant, namespace, name, fqfn)}/trigger", fields))


@app.command()
def querystate(
    key: Key, tenant: Tenant = None, namespace: Namespace = None, name: Name = None, fqfn: Fqn = None
) -> None:
    """Show a value of a function's state."""
    show(api().get(f"{component_path(KIND, tenant, namespace, name, fqfn)}/state/{segment(key)}"))


@app.command()
def putstate(
    state: Annotated[str, typer.Option("--state", "-s", help='JSON: {"key": ..., "stringValue": ...}.')],
    tenant: Tenant = None,
    namespace: Namespace = None,
    name: Name = None,
    fqfn: Fqn = None,
) -> None:
    """Set a value of a function's state."""
    value = json_object(state, "--state")
    if not isinstance(value.get("key"), str):
        raise CommandError('--state: expected {"key": ..., "stringValue": ...}')
    path = f"{component_path(KIND, tenant, namespace, name, fqfn)}/state/{segment(value['key'])}"
    api().send_form("POST", path, {"state": value})


@app.command()
def download(
    destination: Annotated[Path, typer.Option("--destination-file")],
    tenant: Tenant = None,
    namespace: Namespace = None,
    name: Name = None,
    fqfn: Fqn = None,
    path: Annotated[str | None, typer.Option("--path", help="Where it was uploaded to.")] = None,
) -> None:
    """Fetch a function's package."""
    if path is not None:
        _, content = api().get_raw("/admin/v3/functions/download", {"path": path})
    else:
        _, content = api().get_raw(f"{component_path(KIND, tenant, namespace, name, fqfn)}/download")
    destination.write_bytes(content)


@app.command()
def upload(
    source: Annotated[Path, typer.Option("--source-file")],
    path: Annotated[str, typer.Option("--path", help="Where to.")],
) -> None:
    """Leave a package with the platform."""
    if not source.is_file():
        raise CommandError(f"--source-file: there is no file {source}")
    api().send_form("POST", "/admin/v3/functions/upload", {"path": path}, source)
