"""Whether what somebody wants to deploy can work, asked before it is accepted; each no says what to change."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar.environment.logs import get_logger
from magnetar.worker.broker_admin import BrokerAdmin
from magnetar.worker.component import Kind, Package
from magnetar.worker.configs import input_patterns, places_at_the_end, sequenced_topics, topics_of
from magnetar.worker.errors import BadRequest, WorkerError

if TYPE_CHECKING:
    from magnetar.functions.config import FunctionConfig
    from magnetar.worker.configs import AnyConfig

log = get_logger("magnetar.worker.deployment")


async def check_deployment(
    kind: Kind, config: AnyConfig, package: Package, path: Path | None, admin: BrokerAdmin
) -> None:
    """Raises BadRequest for the first thing that cannot work.

    Args:
        path: where the package lies; None for a built-in connector.
    """
    await _check_places(config, admin)
    if kind is Kind.FUNCTION:
        _check_window(config)  # type: ignore[arg-type]
    if package.builtin:
        _check_builtin(kind, package.filename, config)
    else:
        assert path is not None
        await asyncio.to_thread(_check_package, package, path, config.class_name or "")


async def prepare_topics(config: AnyConfig, admin: BrokerAdmin) -> None:
    """Have the broker drop repeated sequences on the topics where the component's guarantee rests on that.

    Raises BadRequest with the broker's reason if it will not.
    """
    for topic in sequenced_topics(config):
        try:
            await admin.enable_deduplication(topic)
        except WorkerError as error:
            raise BadRequest(
                f"deduplication cannot be turned on for {topic}, which this needs to publish each record once: {error}"
            ) from error


async def take_places(config: AnyConfig, admin: BrokerAdmin) -> None:
    """Subscribe a registered component to its inputs before its processes are up, which takes half a second.

    Else what its user publishes right after deploying it would be gone. Where that fails, its processes will
    subscribe, and show the reason if they cannot either.
    """
    for topic, subscription in places_at_the_end(config):
        try:
            await admin.create_subscription(topic, subscription)
        except WorkerError as error:
            log.warning("place.not_taken", topic=topic, reason=str(error))


def _check_window(config: FunctionConfig) -> None:
    if config.window_config is None:
        if config.runs_on_spark:
            raise BadRequest("windowConfig: the engine spark runs windows; without them leave the engine out")
        return
    from magnetar.spark.errors import JavaMissing, WindowUnsupported
    from magnetar.spark.java import find_java
    from magnetar.spark.window_plan import plan_window

    try:
        plan_window(config.to_dict())
    except WindowUnsupported as error:
        raise BadRequest(f"windowConfig: {error}") from error
    if find_spec("pyspark") is None:
        raise BadRequest("windows run on Spark, which is not installed: pip install 'magnetar[spark]'")
    try:
        find_java()
    except JavaMissing as error:
        raise BadRequest(f"windows run on Spark, which needs Java: {error}") from error


def _check_builtin(kind: Kind, archive: str, config: Any) -> None:
    from magnetar.connectors.errors import ConnectorError
    from magnetar.connectors.registry import builtin_connector

    try:
        connector = builtin_connector(archive, "source" if kind is Kind.SOURCE else "sink")
        from_secrets = {
            field.name: "secret://" + field.name  # Its value is known where the connector runs, not here.
            for field in connector.fields()
            if field.sensitive and field.name in (config.secrets or {})
        }
        connector.check({**from_secrets, **(config.configs or {})})
    except ConnectorError as error:
        raise BadRequest(f"{archive}: {error}") from error


def _check_package(package: Package, path: Path, class_name: str) -> None:
    from magnetar.functions.errors import PackageError
    from magnetar.functions.packages import inspect_package

    try:
        inspect_package(path, class_name, package.kind)
    except PackageError as error:
        raise BadRequest(f"package {package.filename}: {error}") from error


async def _check_places(config: AnyConfig, admin: BrokerAdmin) -> None:
    """The component's namespace and those of all its topics have to exist; topics themselves may come later."""
    from magnetar.naming import NamingError, TopicName

    places: dict[tuple[str, str], str] = {(config.tenant, config.namespace): "namespace"}
    for field, topics in topics_of(config).items():
        for topic in topics:
            try:
                name = TopicName.parse(topic)
            except NamingError as error:
                raise BadRequest(f"{field}: {error}") from error
            places.setdefault((name.tenant, name.namespace), f"{field}: {topic}")
    for pattern in input_patterns(config):
        _, tenant, namespace, _ = pattern.replace("://", "/", 1).split("/", 3)
        places.setdefault((tenant, namespace), f"topicsPattern: {pattern}")
    for (tenant, namespace), wanted_by in places.items():
        if not await admin.has_tenant(tenant):
            raise BadRequest(f"{wanted_by}: Tenant {tenant} does not exist; create it first")
        if not await admin.has_namespace(tenant, namespace):
            raise BadRequest(f"{wanted_by}: Namespace {tenant}/{namespace} does not exist; create it first")
