"""The commands that ask a running platform, put together with Typer.

Only the group that is asked for is imported; all of them are when someone asks for help.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from magnetar.cli.admin_api import DEFAULT_URL
from magnetar.cli.commands.session import DEFAULT_SERVICE_URL, Session, use
from magnetar.cli.errors import CommandError

GROUPS = {
    "clusters": "Clusters.",
    "tenants": "Tenants.",
    "namespaces": "Namespaces and their policies.",
    "topics": "Topics, subscriptions and their policies.",
    "schemas": "Schemas of topics.",
    "transactions": "Transactions and their coordinators.",
    "brokers": "Brokers and their dynamic settings.",
    "broker-stats": "What a broker has to do: metrics, topics, load, memory.",
    "ns-isolation-policy": "Namespaces that are kept on brokers of their own.",
    "resourcegroups": "Limits that namespaces share.",
    "functions-worker": "Function workers.",
    "functions": "Functions: code that runs for every message.",
    "sources": "Sources: connectors that bring data in.",
    "sinks": "Sinks: connectors that take data out.",
}
OPERATOR_GROUPS = {
    "metadata": "Making a cluster.",
    "ledger": "Ledgers: what they hold and where. Asks metadata store and bookies, not a broker.",
    "bookie": "Bookies; and, without a further word, running one.",
    "autorecovery": "Lost copies; and, without a further word, running what makes new ones.",
}
ALIASES = {
    "topic": "topics",
    "ledgers": "ledger",
    "bookies": "bookie",
    "topicPolicies": "topics",
    "source": "sources",
    "sink": "sinks",
}
MESSAGES = ("produce", "consume")
# May stand anywhere in the line, as users of several tools expect.
_GLOBAL_OPTIONS = ("--admin-url", "--service-url", "--token")


def run_client_command(words: Sequence[str]) -> int:
    """Run one command; returns its exit status."""
    words = _global_options_first(
        [ALIASES.get(word, word) if i == 0 else word for i, word in enumerate(words)]
    )
    app = typer.Typer(
        name="magnetar",
        help="Magnetar: a streaming platform that speaks Apache Pulsar's protocols.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    asked = next((word for word in words if word in (*GROUPS, *OPERATOR_GROUPS, *MESSAGES)), None)
    for package, groups in (("commands", GROUPS), ("operator", OPERATOR_GROUPS)):
        for name, summary in groups.items():
            if asked in (None, name):
                module = importlib.import_module(f"magnetar.cli.{package}.{name.replace('-', '_')}")
                app.add_typer(
                    module.app,
                    name=name,
                    help=summary,
                    no_args_is_help=True,
                    rich_help_panel="For whoever runs a cluster" if groups is OPERATOR_GROUPS else None,
                )
    if asked is None or asked in MESSAGES:
        from magnetar.cli.commands import messages

        app.command("produce")(messages.produce)
        app.command("consume")(messages.consume)
    if asked is None:
        _mention_servers(app)
    try:
        app(args=words, prog_name="magnetar")
    except CommandError as error:
        print(f"magnetar: {error}", file=sys.stderr)
        return 1
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    return 0


def _root(
    admin_url: Annotated[
        str, typer.Option(envvar="MAGNETAR_ADMIN_URL", help="REST API of the platform.")
    ] = DEFAULT_URL,
    service_url: Annotated[
        str, typer.Option(envvar="MAGNETAR_SERVICE_URL", help="Binary protocol of the platform.")
    ] = DEFAULT_SERVICE_URL,
    token: Annotated[str, typer.Option(envvar="MAGNETAR_TOKEN", help="Sent as a bearer token.")] = "",
) -> None:
    use(Session(admin_url, service_url, token or None))


def _mention_servers(app: typer.Typer) -> None:
    """So that `magnetar --help` names them; they themselves never come here."""

    def standalone() -> None:
        """Run a whole platform in one process."""

    def broker() -> None:
        """Run a broker of a cluster."""

    def worker() -> None:
        """Run a function worker of a cluster."""

    def version() -> None:
        """Print the version."""

    for command in (standalone, broker, worker, version):
        app.command(rich_help_panel="Servers" if command is not version else None)(command)


def _global_options_first(words: Sequence[str]) -> list[str]:
    first: list[str] = []
    rest: list[str] = []
    remaining = iter(words)
    for word in remaining:
        name, equals, _ = word.partition("=")
        if name not in _GLOBAL_OPTIONS:
            rest.append(word)
        elif equals:
            first.append(word)
        else:
            first += [word, next(remaining, "")]
    return first + rest
