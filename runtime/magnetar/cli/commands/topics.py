"""`magnetar topics`: topics, and the policies of single topics. What lies inside them: `stored_messages.py`."""

from __future__ import annotations

from typing import Annotated

import typer

from magnetar.cli.admin_api import segment
from magnetar.cli.commands import stored_messages, subscriptions
from magnetar.cli.commands.policies import BACKLOG_QUOTA, TOPIC_POLICIES, add_policies
from magnetar.cli.commands.session import (
    api,
    checked,
    key_values,
    message_position,
    namespace_path,
    show,
    split_list,
    topic_name,
    topic_path,
    topic_segments,
)
from magnetar.cli.units import seconds, size_bytes

app = typer.Typer()

Topic = Annotated[str, typer.Argument(metavar="TOPIC")]
Namespace = Annotated[str, typer.Argument(metavar="TENANT/NAMESPACE")]
Domain = Annotated[str | None, typer.Option("--topic-domain", "-td", help="persistent or non_persistent.")]
System = Annotated[bool, typer.Option("--include-system-topic", "-ist")]
Partitions = Annotated[int, typer.Option("--partitions", "-p")]
Properties = Annotated[list[str] | None, typer.Option("--metadata", "-m", help="Properties, key=value.")]
Force = Annotated[bool, typer.Option("--force", "-f", help="Disconnect whoever uses it.")]
DeleteSchema = Annotated[bool, typer.Option("--deleteSchema", "--delete-schema", "-d")]
Precise = Annotated[bool, typer.Option("--get-precise-backlog", "-gpb")]
BacklogSize = Annotated[bool, typer.Option("--get-subscription-backlog-size", "-sbs")]
Earliest = Annotated[bool, typer.Option("--get-earliest-time-in-backlog", "-etb")]
Role = Annotated[str, typer.Option("--role", "-r")]
QuotaType = Annotated[str, typer.Option("--type", "-t", help="destination_storage or message_age.")]


@app.command("list")
def list_topics(
    namespace: Namespace, topic_domain: Domain = None, include_system_topic: System = False
) -> None:
    """Name a namespace's topics, partitions one by one."""
    for domain in _domains(topic_domain):
        path = namespace_path(namespace).replace("/namespaces/", f"/{domain}/")
        show(api().get(path, includeSystemTopic=include_system_topic or None))


@app.command("list-partitioned-topics")
def list_partitioned_topics(namespace: Namespace, include_system_topic: System = False) -> None:
    """Name a namespace's partitioned topics."""
    path = namespace_path(namespace).replace("/namespaces/", "/persistent/")
    show(api().get(f"{path}/partitioned", includeSystemTopic=include_system_topic or None))


@app.command()
def create(topic: Topic, metadata: Properties = None) -> None:
    """Create a topic."""
    api().put(topic_path(topic), key_values(metadata, "--metadata") or None)


@app.command("create-partitioned-topic")
def create_partitioned_topic(topic: Topic, partitions: Partitions, metadata: Properties = None) -> None:
    """Create a topic of several partitions."""
    properties = key_values(metadata, "--metadata")
    body: object = {"partitions": partitions, "properties": properties} if properties else partitions
    api().put(f"{topic_path(topic)}/partitions", body)


@app.command("update-partitioned-topic")
def update_partitioned_topic(topic: Topic, partitions: Partitions) -> None:
    """Give a partitioned topic more partitions."""
    api().post(f"{topic_path(topic)}/partitions", partitions)


@app.command("create-missed-partitions")
def create_missed_partitions(topic: Topic) -> None:
    """Create those partitions of a topic that are not there."""
    api().post(f"{topic_path(topic)}/createMissedPartitions")


@app.command("get-partitioned-topic-metadata")
def get_partitioned_topic_metadata(topic: Topic) -> None:
    """Show how many partitions a topic has."""
    show(api().get(f"{topic_path(topic)}/partitions"))


@app.command()
def delete(topic: Topic, force: Force = False, delete_schema: DeleteSchema = False) -> None:
    """Delete a topic."""
    api().delete(topic_path(topic), force=force or None, deleteSchema=delete_schema or None)


@app.command("delete-partitioned-topic")
def delete_partitioned_topic(topic: Topic, force: Force = False, delete_schema: DeleteSchema = False) -> None:
    """Delete a partitioned topic with its partitions."""
    path = f"{topic_path(topic)}/partitions"
    api().delete(path, force=force or None, deleteSchema=delete_schema or None)


@app.command()
def stats(
    topic: Topic, precise: Precise = False, size: BacklogSize = False, earliest: Earliest = False
) -> None:
    """Show a topic's producers, subscriptions and rates."""
    show(api().get(f"{topic_path(topic)}/stats", **_stats_query(precise, size, earliest)))


@app.command("partitioned-stats")
def partitioned_stats(
    topic: Topic,
    per_partition: Annotated[bool, typer.Option("--per-partition")] = False,
    precise: Precise = False,
    size: BacklogSize = False,
    earliest: Earliest = False,
) -> None:
    """Show the same of a partitioned topic as a whole."""
    query = _stats_query(precise, size, earliest)
    show(api().get(f"{topic_path(topic)}/partitioned-stats", perPartition=per_partition, **query))


@app.command("stats-internal")
def stats_internal(
    topic: Topic,
    metadata: Annotated[bool, typer.Option("--metadata", "-m", help="With ledgers' metadata.")] = False,
) -> None:
    """Show a topic's ledgers and cursors."""
    show(api().get(f"{topic_path(topic)}/internalStats", metadata=metadata or None))


@app.command("internal-stats")
def internal_stats(
    topic: Topic,
    metadata_store: Annotated[
        str,
        typer.Option(
            envvar="MAGNETAR_METADATA_STORE",
            metavar="URL",
            help="Ask this store, and no broker: zk:host:2181/chroot.",
        ),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Show ledgers, where their copies are, and subscriptions, as a broker or the metadata store knows them."""
    if metadata_store:
        from magnetar.cli.operator.topic import show_internal_stats

        show_internal_stats(topic, metadata_store, as_json)
    else:
        show(api().get(f"{topic_path(topic)}/internalStats"))


@app.command("partitioned-stats-internal")
def partitioned_stats_internal(topic: Topic) -> None:
    """Show the same for each partition."""
    show(api().get(f"{topic_path(topic)}/partitioned-internalStats"))


@app.command("info-internal")
def info_internal(topic: Topic) -> None:
    """Show what the metadata store knows of a topic's ledgers, without loading the topic."""
    show(api().get(f"{topic_path(topic)}/internal-info"))


@app.command()
def lookup(topic: Topic) -> None:
    """Show which broker serves a topic."""
    found = api().get(f"/lookup/v2/topic/{topic_segments(topic)}")
    show(found["brokerUrl"] if isinstance(found, dict) else found)


@app.command("partitioned-lookup")
def partitioned_lookup(topic: Topic) -> None:
    """Show which broker serves each partition."""
    platform, name = api(), topic_name(topic)
    partitions = platform.get(f"{topic_path(topic)}/partitions")["partitions"]
    for number in range(partitions):
        partition = str(name.partition_name(number))
        found = platform.get(f"/lookup/v2/topic/{topic_segments(partition)}")
        show(f"{partition} {found['brokerUrl']}")


@app.command("bundle-range")
def bundle_range(topic: Topic) -> None:
    """Show the bundle a topic belongs to."""
    show(api().get(f"/lookup/v2/topic/{topic_segments(topic)}/bundle"))


@app.command()
def unload(topic: Topic) -> None:
    """Let the broker give a topic away; clients come back by themselves."""
    api().put(f"{topic_path(topic)}/unload")


@app.command()
def terminate(topic: Topic) -> None:
    """End a topic: nothing can be published to it any more. Shows its last message's id."""
    show(api().post(f"{topic_path(topic)}/terminate"))


@app.command("partitioned-terminate")
def partitioned_terminate(topic: Topic) -> None:
    """The same for each partition."""
    show(api().post(f"{topic_path(topic)}/terminate/partitions"))


@app.command()
def truncate(topic: Topic) -> None:
    """Delete everything that lies in a topic."""
    api().delete(f"{topic_path(topic)}/truncate")


@app.command()
def compact(topic: Topic) -> None:
    """Keep only the last message of each key for readers that ask for it."""
    api().put(f"{topic_path(topic)}/compaction")


@app.command("compaction-status")
def compaction_status(topic: Topic) -> None:
    """Show how a compaction goes."""
    show(api().get(f"{topic_path(topic)}/compaction"))


@app.command()
def offload(
    topic: Topic,
    size_threshold: Annotated[str, typer.Option("--size-threshold", "-s", help="What may stay: 10G.")] = "0",
    message_id: Annotated[str | None, typer.Option("--messageId", "--message-id", "-m")] = None,
) -> None:
    """Move a topic's older ledgers to cheaper storage."""
    if message_id is None:
        body = {"size": checked(size_bytes, size_threshold, "--size-threshold"), **message_position("latest")}
    else:
        body = message_position(message_id)
    api().put(f"{topic_path(topic)}/offload", body)


@app.command("offload-status")
def offload_status(topic: Topic) -> None:
    """Show how an offload goes."""
    show(api().get(f"{topic_path(topic)}/offload"))


@app.command("get-properties")
def get_properties(topic: Topic) -> None:
    """Show a topic's properties."""
    show(api().get(f"{topic_path(topic)}/properties"))


@app.command("update-properties")
def update_properties(
    topic: Topic, property_: Annotated[list[str], typer.Option("--property", "-p")]
) -> None:
    """Add properties, key=value."""
    api().put(f"{topic_path(topic)}/properties", key_values(property_, "--property"))


@app.command("remove-properties")
def remove_properties(topic: Topic, key: Annotated[str, typer.Option("--key", "-k")]) -> None:
    """Take a property away."""
    api().delete(f"{topic_path(topic)}/properties", key=key)


@app.command()
def permissions(topic: Topic) -> None:
    """Show who may do what."""
    show(api().get(f"{topic_path(topic)}/permissions"))


@app.command("grant-permission")
def grant_permission(
    topic: Topic, role: Role, actions: Annotated[list[str], typer.Option("--actions", "-a")]
) -> None:
    """Allow a role what the actions name (produce, consume)."""
    api().post(f"{topic_path(topic)}/permissions/{segment(role)}", split_list(actions))


@app.command("revoke-permission")
def revoke_permission(topic: Topic, role: Role) -> None:
    """Allow a role nothing any more."""
    api().delete(f"{topic_path(topic)}/permissions/{segment(role)}")


@app.command("get-backlog-quotas")
def get_backlog_quotas(topic: Topic) -> None:
    """Show how much may wait for slow subscriptions."""
    show(api().get(f"{topic_path(topic)}/backlogQuotaMap"))


@app.command("set-backlog-quota")
def set_backlog_quota(
    topic: Topic,
    policy: Annotated[str, typer.Option("--policy", "-p", help=BACKLOG_QUOTA[2].help)],
    limit: Annotated[str, typer.Option("--limit", "-l", help="10M, 2G; -1: no limit")] = "-1",
    limit_time: Annotated[str, typer.Option("--limitTime", "--limit-time", "-lt")] = "-1",
    type_: QuotaType = "destination_storage",
) -> None:
    """Limit how much may wait for slow subscriptions."""
    quota = {
        "limitSize": checked(size_bytes, limit, "--limit"),
        "limitTime": checked(seconds, limit_time, "--limit-time"),
        "policy": policy,
    }
    query = {"backlogQuotaType": type_}
    api().request("POST", f"{topic_path(topic)}/backlogQuota", body=quota, query=query)


@app.command("remove-backlog-quota")
def remove_backlog_quota(topic: Topic, type_: QuotaType = "destination_storage") -> None:
    """Let the default limit hold again."""
    api().delete(f"{topic_path(topic)}/backlogQuota", backlogQuotaType=type_)


def _domains(chosen: str | None) -> list[str]:
    return ["persistent", "non-persistent"] if chosen is None else [chosen.replace("_", "-")]


def _stats_query(precise: bool, size: bool, earliest: bool) -> dict[str, object]:
    return {
        "getPreciseBacklog": precise or None,
        "subscriptionBacklogSize": size or None,
        "getEarliestTimeInBacklog": earliest or None,
    }


subscriptions.add_to(app)
stored_messages.add_to(app)
add_policies(app, TOPIC_POLICIES, "TOPIC", topic_path)
