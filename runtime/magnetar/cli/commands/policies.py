"""The get-, set- and remove- commands of policies, made from tables: they differ in names and in nothing else.

A policy is one value (its body is the bare JSON value) or an object with a few fields. Options are named as
pulsar-admin names them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import typer

from magnetar.cli.commands.session import api, show, split_list
from magnetar.cli.commands.signatures import REQUIRED, argument, described, option
from magnetar.cli.errors import CommandError
from magnetar.cli.units import megabytes, minutes, seconds, size_bytes


@dataclass(frozen=True, slots=True)
class Field:
    """An option of a set- command.

    `name` is the field of the body; "" where the body is the value itself.
    """

    name: str
    options: tuple[str, ...]
    convert: Callable[[str], Any]
    help: str = ""
    default: Any = None
    required: bool = True


@dataclass(frozen=True, slots=True)
class Flags:
    """A pair of switches, `--enable` and `--disable`, that make a boolean."""

    name: str = ""
    enable: tuple[str, ...] = ("--enable", "-e")
    disable: tuple[str, ...] = ("--disable", "-d")
    required: bool = True


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy: the end of its path, and how its value is written."""

    noun: str
    path: str
    fields: tuple[Field | Flags, ...]
    writes: Literal["POST", "PUT"] = "POST"
    removable: bool = True
    in_query: str = ""
    """The query parameter that carries the value where the platform expects it there."""
    read_path: str = ""


def text(value: str) -> str:
    return value


def number(value: str) -> int:
    return int(value)


def decimal(value: str) -> float:
    return float(value)


def names(value: str) -> list[str]:
    return split_list([value])


def one(*options: str, convert: Callable[[str], Any] = number, help: str = "") -> tuple[Field]:
    """A policy that is a single value."""
    return (Field("", options, convert, help),)


def limit(noun: str, path: str, *options: str) -> Policy:
    """A policy that is a number."""
    return Policy(noun, path, one(*options))


def optional(name: str, *options: str, convert: Callable[[str], Any] = number, default: Any = None) -> Field:
    return Field(name, options, convert, default=default, required=False)


_DISPATCH_RATE = (
    optional("dispatchThrottlingRateInMsg", "--msg-dispatch-rate", "-md", default=-1),
    optional("dispatchThrottlingRateInByte", "--byte-dispatch-rate", "-bd", default=-1),
    optional("ratePeriodInSecond", "--dispatch-rate-period", "-dt", convert=seconds, default=1),
)
RETENTION = (
    Field("retentionTimeInMinutes", ("--time", "-t"), minutes, "10m, 3h, 7d; 0: none; -1: no limit"),
    Field("retentionSizeInMB", ("--size", "-s"), megabytes, "512M, 10G; 0: none; -1: no limit"),
)
PERSISTENCE = (
    optional("bookkeeperEnsemble", "--bookkeeper-ensemble", "-e", default=2),
    optional("bookkeeperWriteQuorum", "--bookkeeper-write-quorum", "-w", default=2),
    optional("bookkeeperAckQuorum", "--bookkeeper-ack-quorum", "-a", default=2),
    optional(
        "managedLedgerMaxMarkDeleteRate", "--ml-mark-delete-max-rate", "-r", convert=decimal, default=0.0
    ),
)
BACKLOG_QUOTA = (
    optional("limitSize", "--limit", "-l", convert=size_bytes, default=-1),
    optional("limitTime", "--limitTime", "--limit-time", "-lt", convert=seconds, default=-1),
    Field(
        "policy",
        ("--policy", "-p"),
        text,
        "producer_request_hold, producer_exception or consumer_backlog_eviction",
    ),
)
DELAYED_DELIVERY = (
    Flags("active"),
    optional("tickTime", "--time", "-t", convert=lambda given: seconds(given) * 1000, default=1000),
)
INACTIVE_TOPICS = (
    Flags(
        "deleteWhileInactive",
        ("--enable-delete-while-inactive", "-e"),
        ("--disable-delete-while-inactive", "-d"),
    ),
    Field("maxInactiveDurationSeconds", ("--max-inactive-duration", "-t"), seconds),
    Field("inactiveTopicDeleteMode", ("--delete-mode", "-m"), text),
)
RATES = (
    Policy("dispatch-rate", "dispatchRate", _DISPATCH_RATE),
    Policy("subscription-dispatch-rate", "subscriptionDispatchRate", _DISPATCH_RATE),
    Policy("replicator-dispatch-rate", "replicatorDispatchRate", _DISPATCH_RATE),
    Policy(
        "publish-rate",
        "publishRate",
        (
            optional("publishThrottlingRateInMsg", "--msg-publish-rate", "-m", default=-1),
            optional("publishThrottlingRateInByte", "--byte-publish-rate", "-b", default=-1),
        ),
    ),
    Policy(
        "subscribe-rate",
        "subscribeRate",
        (
            optional("subscribeThrottlingRatePerConsumer", "--subscribe-rate", "-sr", default=-1),
            optional("ratePeriodInSecond", "--subscribe-rate-period", "-st", convert=seconds, default=30),
        ),
    ),
)
_EVERYWHERE = (
    *RATES,
    Policy("retention", "retention", RETENTION),
    Policy("persistence", "persistence", PERSISTENCE),
    Policy("delayed-delivery", "delayedDelivery", DELAYED_DELIVERY),
    Policy("inactive-topic-policies", "inactiveTopicPolicies", INACTIVE_TOPICS),
    limit(
        "max-consumers-per-subscription",
        "maxConsumersPerSubscription",
        "--max-consumers-per-subscription",
        "-c",
    ),
    limit("max-subscriptions-per-topic", "maxSubscriptionsPerTopic", "--max-subscriptions-per-topic", "-m"),
    limit("deduplication-snapshot-interval", "deduplicationSnapshotInterval", "--interval", "-i"),
)
NAMESPACE_POLICIES = (
    *_EVERYWHERE,
    Policy("message-ttl", "messageTTL", one("--messageTTL", "--ttl", "-ttl", convert=seconds)),
    Policy("deduplication", "deduplication", (Flags(),)),
    limit("max-producers-per-topic", "maxProducersPerTopic", "--max-producers-per-topic", "-p"),
    limit("max-consumers-per-topic", "maxConsumersPerTopic", "--max-consumers-per-topic", "-c"),
    limit(
        "max-unacked-messages-per-consumer",
        "maxUnackedMessagesPerConsumer",
        "--max-unacked-messages-per-topic",
        "-c",
    ),
    limit(
        "max-unacked-messages-per-subscription",
        "maxUnackedMessagesPerSubscription",
        "--max-unacked-messages-per-subscription",
        "-c",
    ),
    limit("max-topics-per-namespace", "maxTopicsPerNamespace", "--max-topics-per-namespace", "-t"),
    Policy(
        "compaction-threshold", "compactionThreshold", one("--threshold", "-t", convert=size_bytes), "PUT"
    ),
    Policy(
        "subscription-expiration-time", "subscriptionExpirationTime", one("--time", "-t", convert=minutes)
    ),
    Policy(
        "auto-topic-creation",
        "autoTopicCreation",
        (
            Flags("allowAutoTopicCreation"),
            optional("topicType", "--type", "-t", convert=text),
            optional("defaultNumPartitions", "--num-partitions", "-n"),
        ),
    ),
    Policy(
        "auto-subscription-creation", "autoSubscriptionCreation", (Flags("allowAutoSubscriptionCreation"),)
    ),
    Policy(
        "schema-compatibility-strategy",
        "schemaCompatibilityStrategy",
        one("--compatibility", "-c", convert=text),
        "PUT",
        removable=False,
    ),
    Policy("schema-validation-enforce", "schemaValidationEnforced", (Flags(),), removable=False),
    Policy("is-allow-auto-update-schema", "isAllowAutoUpdateSchema", (Flags(),), removable=False),
    Policy("encryption-required", "encryptionRequired", (Flags(),), removable=False),
    Policy(
        "subscription-auth-mode",
        "subscriptionAuthMode",
        one("--subscription-auth-mode", "-m", convert=text),
        removable=False,
    ),
    Policy("subscription-types-enabled", "subscriptionTypesEnabled", one("--types", "-t", convert=names)),
    Policy("clusters", "replication", one("--clusters", "-c", convert=names), removable=False),
)
TOPIC_POLICIES = (
    *_EVERYWHERE,
    Policy("message-ttl", "messageTTL", one("--ttl", "-t", convert=seconds), in_query="messageTTL"),
    Policy("deduplication", "deduplicationEnabled", (Flags(),)),
    limit("max-producers", "maxProducers", "--max-producers", "-p"),
    limit("max-consumers", "maxConsumers", "--max-consumers", "-c"),
    limit("max-message-size", "maxMessageSize", "--max-message-size", "-m"),
    limit(
        "max-unacked-messages-on-consumer",
        "maxUnackedMessagesOnConsumer",
        "--max-unacked-messages-per-consumer",
        "-m",
    ),
    limit(
        "max-unacked-messages-on-subscription",
        "maxUnackedMessagesOnSubscription",
        "--max-unacked-messages-per-subscription",
        "-m",
    ),
    Policy("compaction-threshold", "compactionThreshold", one("--threshold", "-t", convert=size_bytes)),
    Policy(
        "schema-compatibility-strategy",
        "schemaCompatibilityStrategy",
        one("--strategy", "-s", convert=text),
        "PUT",
    ),
    Policy("subscription-types-enabled", "subscriptionTypesEnabled", one("--types", "-t", convert=names)),
    Policy("replication-clusters", "replication", one("--clusters", "-c", convert=names)),
)


def add_policies(
    app: typer.Typer, policies: Sequence[Policy], subject: str, path_of: Callable[[str], str]
) -> None:
    """Give `app` the commands of `policies`; `subject` is what their argument names."""
    for policy in policies:
        app.command(f"get-{policy.noun}")(_getter(policy, subject, path_of))
        app.command(f"set-{policy.noun}")(_setter(policy, subject, path_of))
        if policy.removable:
            app.command(f"remove-{policy.noun}")(_remover(policy, subject, path_of))


def _getter(policy: Policy, subject: str, path_of: Callable[[str], str]) -> Callable[..., None]:
    def get(**given: Any) -> None:
        applied = True if given["applied"] else None
        show(api().get(f"{path_of(given['name'])}/{policy.read_path or policy.path}", applied=applied))

    help_text = "With what holds where nothing is set here."
    switch = option("applied", bool, typer.Option("--applied", "-ap", help=help_text), False)
    return described(get, f"Show the {_words(policy)}.", [argument(subject), switch])


def _remover(policy: Policy, subject: str, path_of: Callable[[str], str]) -> Callable[..., None]:
    def remove(**given: Any) -> None:
        api().delete(f"{path_of(given['name'])}/{policy.path}")

    return described(remove, f"Let the default {_words(policy)} hold again.", [argument(subject)])


def _setter(policy: Policy, subject: str, path_of: Callable[[str], str]) -> Callable[..., None]:
    def set_(**given: Any) -> None:
        values: dict[str, Any] = {}
        for number, field in enumerate(policy.fields):
            value = _value(field, number, given)
            if value is not None:
                values[field.name] = value
        body = values.get("") if len(policy.fields) == 1 and not policy.fields[0].name else values
        path = f"{path_of(given['name'])}/{policy.path}"
        if policy.in_query:
            api().request(policy.writes, path, query={policy.in_query: body})
        else:
            api().request(policy.writes, path, body=body)

    parameters = [argument(subject)]
    for number, field in enumerate(policy.fields):
        if isinstance(field, Flags):
            parameters.append(option(f"on_{number}", bool, typer.Option(*field.enable), False))
            parameters.append(option(f"off_{number}", bool, typer.Option(*field.disable), False))
        else:
            written = typer.Option(*field.options, help=field.help, show_default=False)
            default = REQUIRED if field.required else None
            kind = str if field.required else str | None
            parameters.append(option(f"value_{number}", kind, written, default))
    return described(set_, f"Set the {_words(policy)}.", parameters)


def _value(field: Field | Flags, number: int, given: Mapping[str, Any]) -> Any:
    if isinstance(field, Flags):
        on, off = given[f"on_{number}"], given[f"off_{number}"]
        if on == off:
            raise CommandError(f"say either {field.enable[0]} or {field.disable[0]}")
        return on
    written = given[f"value_{number}"]
    if written is None:
        return field.default
    try:
        return field.convert(written)
    except ValueError as error:
        raise CommandError(f"{field.options[0]}: {error}") from error


def _words(policy: Policy) -> str:
    return policy.noun.replace("-", " ")
