"""What `functions`, `sources` and `sinks` have in common: they are created from a config and a package, named,
started, stopped and looked at. The options that write a config stand in a table, as pulsar-admin names them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from magnetar.cli.admin_api import segment
from magnetar.cli.commands.session import api, json_object, key_values, show, split_list
from magnetar.cli.commands.signatures import described, option
from magnetar.cli.errors import CommandError

Tenant = Annotated[str | None, typer.Option("--tenant", "-t", help="Default: public.")]
Namespace = Annotated[str | None, typer.Option("--namespace", "-n", help="Default: default.")]
Name = Annotated[str | None, typer.Option("--name")]
Fqn = Annotated[str | None, typer.Option("--fqfn", help="tenant/namespace/name in one.")]
Instance = Annotated[int | None, typer.Option("--instance-id", help="One instance (default: all).")]


@dataclass(frozen=True, slots=True)
class ConfigOption:
    """An option that writes a field of the config; `field` may name a field within one, with a dot."""

    field: str
    options: tuple[str, ...]
    convert: Callable[[str, str], Any]
    help: str = ""
    switch: bool = False


def text(value: str, _: str) -> str:
    return value


def whole(value: str, name: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise CommandError(f"{name}: expected a whole number, not {value!r}") from None


def decimal(value: str, name: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise CommandError(f"{name}: expected a number, not {value!r}") from None


def truth(value: str, name: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise CommandError(f"{name}: expected true or false, not {value!r}")
    return value.lower() == "true"


def names(value: str, _: str) -> list[str]:
    return split_list([value])


def pairs(value: str, name: str) -> dict[str, Any]:
    """A JSON object; or `key=value,key=value`."""
    return json_object(value, name) if value.lstrip().startswith("{") else dict(key_values([value], name))


def switch(value: str, _: str) -> bool:
    return value == "True"


def setting(
    field: str, *options: str, convert: Callable[[str, str], Any] = text, help: str = ""
) -> ConfigOption:
    return ConfigOption(field, options, convert, help)


COMMON = (
    setting("className", "--classname", help="module.Class in the package."),
    setting("parallelism", "--parallelism", convert=whole, help="Number of instances."),
    setting(
        "processingGuarantees",
        "--processing-guarantees",
        help="ATLEAST_ONCE, ATMOST_ONCE or EFFECTIVELY_ONCE.",
    ),
    setting("resources.cpu", "--cpu", convert=decimal, help="Cores of an instance."),
    setting("resources.ram", "--ram", convert=whole, help="Bytes of memory of an instance."),
    setting("resources.disk", "--disk", convert=whole, help="Bytes of disk of an instance."),
    setting("secrets", "--secrets", convert=pairs, help="JSON."),
    setting("logTopic", "--log-topic", help="Topic for its log."),
    setting("customRuntimeOptions", "--custom-runtime-options"),
    setting("runtimeFlags", "--runtime-flags"),
)
INPUTS = (
    setting("inputs", "--inputs", "-i", convert=names, help="Topics it reads, between commas."),
    setting("topicsPattern", "--topics-pattern", help="Or all topics that match."),
    setting("inputSpecs", "--input-specs", convert=pairs, help="JSON: topic to ConsumerConfig."),
    setting("maxMessageRetries", "--max-message-retries", convert=whole),
    setting("deadLetterTopic", "--dead-letter-topic"),
    setting("timeoutMs", "--timeout-ms", convert=whole),
    ConfigOption(
        "retainOrdering", ("--retain-ordering",), switch, "Keep the order of messages.", switch=True
    ),
    ConfigOption(
        "retainKeyOrdering", ("--retain-key-ordering",), switch, "... of those of one key.", switch=True
    ),
    setting("autoAck", "--auto-ack", convert=truth),
    setting("cleanupSubscription", "--cleanup-subscription", convert=truth),
)


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of component."""

    path: str  # The last segment of `/admin/v3/…`, and of form field names without its "s".
    noun: str
    options: tuple[ConfigOption, ...]
    package_options: tuple[ConfigOption, ...]
    """Options that name the package: a file that is uploaded, or a URL that the platform fetches."""
    config_file_option: str

    @property
    def base(self) -> str:
        return f"/admin/v3/{self.path}"


def add_component_commands(app: typer.Typer, kind: Kind) -> None:
    """Give `app` the verbs that all kinds have."""
    app.command("create")(_deployer(kind, "POST", f"Create a {kind.noun}."))
    app.command("update")(_deployer(kind, "PUT", f"Change a {kind.noun}; what is not given stays."))

    def delete(
        tenant: Tenant = None, namespace: Namespace = None, name: Name = None, fqfn: Fqn = None
    ) -> None:
        api().delete(component_path(kind, tenant, namespace, name, fqfn))

    def get(tenant: Tenant = None, namespace: Namespace = None, name: Name = None, fqfn: Fqn = None) -> None:
        show(api().get(component_path(kind, tenant, namespace, name, fqfn)))

    def list_(tenant: Tenant = None, namespace: Namespace = None) -> None:
        path = f"{kind.base}/{segment(tenant or 'public')}/{segment(namespace or 'default')}"
        show(api().get(path))

    def status(
        tenant: Tenant = None,
        namespace: Namespace = None,
        name: Name = None,
        fqfn: Fqn = None,
        instance_id: Instance = None,
    ) -> None:
        show(
            api().get(
                f"{component_path(kind, tenant, namespace, name, fqfn)}{instance_path(instance_id)}/status"
            )
        )

    for verb, command, summary in (
        ("delete", delete, f"Delete a {kind.noun}."),
        ("get", get, f"Show a {kind.noun}'s config."),
        ("list", list_, f"Name a namespace's {kind.path}."),
        ("status", status, f"Show how a {kind.noun}'s instances fare."),
    ):
        app.command(verb, help=summary)(command)
    for verb in ("start", "stop", "restart"):
        app.command(verb, help=f"{verb.capitalize()} a {kind.noun}, or one instance.")(_mover(kind, verb))


def _mover(kind: Kind, verb: str) -> Callable[..., None]:
    def move(
        tenant: Tenant = None,
        namespace: Namespace = None,
        name: Name = None,
        fqfn: Fqn = None,
        instance_id: Instance = None,
    ) -> None:
        api().post(
            f"{component_path(kind, tenant, namespace, name, fqfn)}{instance_path(instance_id)}/{verb}"
        )

    return move


def _deployer(kind: Kind, method: str, summary: str) -> Callable[..., None]:
    options = (*kind.options, *kind.package_options)

    def deploy(**given: Any) -> None:
        config = _read_config(given["config_file"])
        _apply(config, options, given)
        tenant, namespace, name = _identity(config, given)
        config |= {"tenant": tenant, "namespace": namespace, "name": name}
        fields: dict[str, object] = {f"{kind.path[:-1]}Config": config}
        package, url = _package(config, kind.package_options)
        if url is not None:
            fields["url"] = url
        path = f"{kind.base}/{segment(tenant)}/{segment(namespace)}/{segment(name)}"
        api().send_form(method, path, fields, package)
        print(f"{'Created' if method == 'POST' else 'Updated'} {tenant}/{namespace}/{name}")

    identity = [
        option("tenant", str | None, typer.Option("--tenant", help="Default: public."), None),
        option("namespace", str | None, typer.Option("--namespace", help="Default: default."), None),
        option("name", str | None, typer.Option("--name", help="Default: the class's."), None),
        option("fqfn", str | None, typer.Option("--fqfn", help="tenant/namespace/name in one."), None),
        option(
            "config_file",
            Path | None,
            typer.Option(
                kind.config_file_option, help="The whole config as YAML or JSON; options win over it."
            ),
            None,
        ),
    ]
    written = [
        option(_key(each), bool, typer.Option(*each.options, help=each.help), False)
        if each.switch
        else option(_key(each), str | None, typer.Option(*each.options, help=each.help), None)
        for each in options
    ]
    return described(deploy, summary, [*identity, *written])


def _key(each: ConfigOption) -> str:
    return each.options[0].lstrip("-").replace("-", "_")


def _apply(config: dict[str, Any], options: Sequence[ConfigOption], given: Mapping[str, Any]) -> None:
    for each in options:
        value = given[_key(each)]
        if value is None or value is False:
            continue
        *outer, field = each.field.split(".")
        step = config
        for name in outer:
            step = step.setdefault(name, {})
        step[field] = each.convert(str(value), each.options[0])


def _read_config(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        written = path.read_text()
        if path.suffix == ".json":
            config = json.loads(written)
        else:
            import yaml

            config = yaml.safe_load(written)
    except Exception as error:
        raise CommandError(f"{path}: cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise CommandError(f"{path}: expected `key: value` lines, found {type(config).__name__}")
    return config


def _identity(config: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[str, str, str]:
    fqfn = given["fqfn"] or config.get("fqfn")
    if fqfn:
        return _split_fqfn(str(fqfn))
    class_name = str(config.get("className") or "")
    name = given["name"] or config.get("name") or class_name.rpartition(".")[2]
    if not name:
        raise CommandError("what is it to be called? Say --name")
    tenant = given["tenant"] or config.get("tenant") or "public"
    namespace = given["namespace"] or config.get("namespace") or "default"
    return str(tenant), str(namespace), str(name)


def _split_fqfn(fqfn: str) -> tuple[str, str, str]:
    parts = fqfn.split("/")
    if len(parts) != 3 or not all(parts):
        raise CommandError(f"--fqfn: expected tenant/namespace/name, not {fqfn!r}")
    return parts[0], parts[1], parts[2]


def _package(config: dict[str, Any], options: Sequence[ConfigOption]) -> tuple[Path | None, str | None]:
    """The file to upload, or the URL to name; neither where an update keeps its package."""
    for each in options:
        location = config.get(each.field)
        if not location:
            continue
        if "://" in location:
            return None, location
        path = Path(location).expanduser()
        if not path.is_file():
            raise CommandError(f"{each.options[0]}: there is no file {location}")
        config[each.field] = path.name
        return path, None
    return None, None


def component_path(
    kind: Kind, tenant: str | None, namespace: str | None, name: str | None, fqfn: str | None
) -> str:
    """`/admin/v3/functions/t/n/name`."""
    if fqfn:
        tenant, namespace, name = _split_fqfn(fqfn)
    if not name:
        raise CommandError(f"which {kind.noun}? Say --name")
    return "/".join((kind.base, segment(tenant or "public"), segment(namespace or "default"), segment(name)))


def instance_path(number: int | None) -> str:
    """`/3`, or nothing for all instances."""
    return "" if number is None else f"/{number}"
