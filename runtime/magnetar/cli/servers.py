"""The sub-commands that serve: their options, and running them until they are told to stop."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar.cli.errors import CannotServe, CommandError
from magnetar.environment import gc_tuning, logs

if TYPE_CHECKING:
    from magnetar.cli.serving import Role
    from magnetar.cli.settings.model import PlatformSettings

_DESCRIPTIONS = {
    "standalone": "Run a whole platform in one process: broker, bookie, metadata, REST API, function worker.",
    "broker": "Run a broker with its REST API and function worker, over bookies found in the metadata store.",
    "bookie": "Run a bookie: durable storage for brokers, announced in the metadata store.",
    "autorecovery": "Run what looks for lost copies of ledgers and makes new ones.",
    "worker": "Run a function worker: functions, sources and sinks, beside brokers found in the metadata store.",
}
_PORTS = {
    "standalone": "port to serve on (default: 6650)",
    "broker": "port to serve on (default: 6650)",
    "bookie": "port to serve on (default: 3181)",
    "autorecovery": "port of /metrics and /status.html (default: a free one)",
    "worker": "a further port for the REST API (default: none)",
}
_USUAL: dict[str, dict[str, Any]] = {
    "broker": {"policies.ensemble_size": 2, "policies.write_quorum": 2, "policies.ack_quorum": 2},
    "worker": {"web_port": 6750},
}
"""What a role takes where nobody says otherwise. The quorums are those of Pulsar's broker.conf."""
_READY = "When it accepts it prints one line: `magnetar ready: URL... (SECONDS s)`."


def run_server(name: str, words: Sequence[str]) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit status; 1 where it cannot serve, and says why."""
    gc_tuning.postpone()
    # Pydantic would look for plugins in every installed distribution: there are none for us, and it takes a while.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    options = _parser(name).parse_args(words)
    level = options.log_level or os.environ.get("MAGNETAR_LOG_LEVEL") or "INFO"
    logs.configure(level if level.upper() in ("DEBUG", "INFO", "WARNING", "ERROR") else "INFO")
    try:
        return _serve(name, options)
    except CommandError as error:
        print(f"magnetar {name}: {error}", file=sys.stderr)
        return 1


def _serve(name: str, options: argparse.Namespace) -> int:
    from magnetar.cli.settings.loading import load_settings

    given: dict[str, Any] = {
        key: value for key, value in vars(options).items() if key != "config" and value is not None
    }
    quorums = ("ensemble", "write_quorum", "ack_quorum")
    if "ensemble" in given and name != "standalone":
        given.setdefault("write_quorum", min(2, given["ensemble"]))
        given.setdefault("ack_quorum", min(2, given["write_quorum"]))
    for key, ours in zip(quorums, ("ensemble_size", "write_quorum", "ack_quorum"), strict=True):
        if key in given:
            given[f"policies.{ours}"] = given.pop(key)
    if "advertised_host" in given:
        given["broker.advertised_host"] = given.pop("advertised_host")
    if name in ("bookie", "autorecovery", "worker") and "port" in given:
        given[f"{name}_port"] = given.pop("port")
    if "on_lost_data" in given:
        given["bookie.on_lost_data"] = given.pop("on_lost_data")
    if name == "bookie" and "web_port" in given:
        given["bookie_web_port"] = given.pop("web_port")
    settings = load_settings(options.config, os.environ, given, _USUAL.get(name, {}))
    _check_quorums(settings)
    if not settings.metadata_store and name != "standalone":
        raise CannotServe("where is the metadata store? Say --metadata-store zk:host:2181")
    if not settings.metadata_store and settings.policies.ensemble_size > 1:
        raise CannotServe(
            f"an ensemble of {settings.policies.ensemble_size} bookies is asked for (--ensemble, or"
            " policies.ensemble_size): alone this platform has one. Leave it out, or run bookies over ZooKeeper"
            " and say --metadata-store zk:host:2181"
        )
    logs.configure(settings.log_level, as_json=settings.log_json)
    from magnetar.cli.serving import serve

    return serve(_role(name), settings)


def _role(name: str) -> Role:
    if name == "standalone":
        from magnetar.cli.standalone import standalone

        return standalone
    if name == "broker":
        from magnetar.cli.broker import broker

        return broker
    if name == "autorecovery":
        from magnetar.cli.autorecovery import autorecovery

        return autorecovery
    if name == "worker":
        from magnetar.cli.worker import worker

        return worker
    from magnetar.cli.bookie import bookie

    return bookie


def _check_quorums(settings: PlatformSettings) -> None:
    policies = settings.policies
    sizes = (policies.ensemble_size, policies.write_quorum, policies.ack_quorum)
    if not sizes[0] >= sizes[1] >= sizes[2] >= 1:
        raise CannotServe(
            "policies: ensemble_size {}, write_quorum {} and ack_quorum {} do not fit: no more copies are awaited "
            "than made, and no more made than there are bookies in the ensemble".format(*sizes)
        )


def _parser(name: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"magnetar {name}",
        description=f"{_DESCRIPTIONS[name]} {_READY}",
        epilog="Every setting can stand in a --config file, and in a variable: MAGNETAR_PORT, "
        "MAGNETAR_BROKER__MAX_MESSAGE_BYTES. Options win over variables, variables over the file.",
        allow_abbrev=False,
    )
    kept = (
        "keeps nothing: taken for the sake of scripts"
        if name == "autorecovery"
        else "where everything is kept"
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help=f"{kept} (default: ./data)")
    parser.add_argument("--host", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, help=f"{_PORTS[name]}; 0: a free one")
    if name != "autorecovery":
        parser.add_argument(
            "--advertised-host",
            "--advertised-address",
            metavar="NAME",
            help="what others are told to connect to (default: --host, or this machine's name for 0.0.0.0)",
        )
    if name in ("standalone", "broker", "worker"):
        default = 6750 if name == "worker" else 8080
        parser.add_argument(
            "--web-port", type=int, help=f"port of the REST API; 0: a free one (default: {default})"
        )
        parser.add_argument("--ensemble", type=int, metavar="E", help="bookies each ledger is spread over")
        parser.add_argument("--write-quorum", type=int, metavar="QW", help="copies of each entry")
        parser.add_argument("--ack-quorum", type=int, metavar="QA", help="copies stored before a receipt")
        parser.add_argument("--cluster", metavar="NAME", help="name of the cluster")
        parser.add_argument(
            "--no-functions", dest="functions", action="store_const", const=False, help="no function worker"
        )
    parser.add_argument(
        "--metadata-store",
        metavar="URL",
        help="zk:host:2181,host:2181/chroot, etcd:host:2379/prefix or rocksdb:/directory",
    )
    if name != "standalone":
        parser.add_argument(
            "--bookie-metadata-store",
            metavar="URL",
            help="where ledgers and bookies are recorded (default: in --metadata-store)",
        )
    if name == "bookie":
        parser.add_argument("--web-port", type=int, help="port of /metrics; 0: a free one (default: none)")
        parser.add_argument(
            "--limbo",
            dest="on_lost_data",
            action="store_const",
            const="limbo",
            help="start although data were lost: nothing is denied until all is filled again from other bookies",
        )
        parser.add_argument("--bookie-id", metavar="ID", help="name of this bookie, for ever")
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings: YAML, or a Pulsar .conf file")
    parser.add_argument("--log-level", metavar="LEVEL", help="DEBUG, INFO, WARNING or ERROR (default: INFO)")
    return parser
