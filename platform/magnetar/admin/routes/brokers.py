"""/admin/v2/brokers"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from magnetar.admin.answers import Answer, done, text
from magnetar.admin.errors import Refused
from magnetar.admin.routing import Guards, Route
from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.broker.upkeep.chores import Chore
from magnetar.environment.logs import get_logger
from magnetar.naming import TopicName
from magnetar.policies.configuration import DYNAMIC_KEYS
from magnetar.policies.errors import PreconditionFailed
from magnetar.protocol.message import build_message
from magnetar.protocol.pulsar_pb2 import MessageMetadata

if TYPE_CHECKING:
    from magnetar.admin.call import Call
    from magnetar.managed_ledger import Position

log = get_logger("magnetar.admin")

BASE: Final = "/admin/v2/brokers"
HEALTH_TOPIC: Final = TopicName("persistent", "pulsar", "system", "healthcheck")
HEALTH_DEADLINE_S: Final = 10.0


async def list_brokers(call: Call) -> list[str]:
    """The brokers of this cluster."""
    return known_brokers(call)


def known_brokers(call: Call) -> list[str]:
    """Their ids, sorted."""
    others = [each.broker_id for each in call.admin.broker.neighbourhood.members.others]
    return sorted({_broker_id(call), *others})


async def leader(call: Call) -> dict[str, str]:
    """One broker, the same whoever is asked. None decides for all: each decides the same for itself."""
    broker = call.admin.broker
    urls = {each.broker_id: each.address.web_url for each in broker.neighbourhood.members.others}
    urls[_broker_id(call)] = broker.web_service_url
    first = min(urls)
    return {"brokerId": first, "serviceUrl": urls[first]}


async def owned_namespaces(call: Call) -> dict[str, Any]:
    """The bundles a broker serves; another broker's as it has told lately."""
    status = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
    if call["broker"] == _broker_id(call):
        return {str(bundle): status for bundle in call.admin.broker.ownership.owned}
    other = call.admin.broker.neighbourhood.members.find(call["broker"])
    if other is None:
        raise Refused(404, f"Broker {call['broker'][:200]} is not there")
    return dict.fromkeys(other.bundles, status)


def _broker_id(call: Call) -> str:
    return call.admin.broker.web_service_url.partition("://")[2] or call.admin.broker.settings.broker_id


async def configuration_names(call: Call) -> list[str]:
    """Settings that can be changed while the platform runs."""
    return list(DYNAMIC_KEYS)


async def configuration_values(call: Call) -> dict[str, str]:
    """Settings that have been changed while the platform runs."""
    return (await call.admin.resources.dynamic_configuration()).values


async def runtime_configuration(call: Call) -> dict[str, str]:
    """All settings as they are now."""
    broker = {name: _told(value) for name, value in call.admin.broker.settings.model_dump().items()}
    changed = (await call.admin.resources.dynamic_configuration()).values
    return {**broker, **call.admin.runtime_configuration, **changed}


def _told(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


async def set_configuration(call: Call) -> Answer:
    """Change a setting while the platform runs."""
    key, value = call["key"], call["value"]
    if key not in DYNAMIC_KEYS:
        raise PreconditionFailed(f"Can't update non-dynamic configuration: {key[:100]}")
    await call.admin.resources.change_configuration(key, value)
    log.info("dynamic_setting.changed", key=key, value=value[:200])
    return done()


async def delete_configuration(call: Call) -> None:
    """Let a setting be what the files say."""
    if call["key"] not in DYNAMIC_KEYS:
        raise PreconditionFailed(f"Can't update non-dynamic configuration: {call['key'][:100]}")
    await call.admin.resources.change_configuration(call["key"], None)


async def internal_configuration(call: Call) -> dict[str, str]:
    """Where the platform keeps its metadata."""
    url = call.admin.runtime_configuration.get("metadataStoreUrl", "")
    return {
        "metadataStoreUrl": url,
        "configurationMetadataStoreUrl": url,
        "ledgersRootPath": "/ledgers",
        "stateStorageServiceUrl": "",
    }


async def health(call: Call) -> Answer:
    """Store a message and read it back: `ok` if that works."""
    asked = call.query.get("brokerId")
    if asked and asked != _broker_id(call):
        raise Refused(404, f"Broker {asked[:200]} is not there")
    try:
        async with asyncio.timeout(HEALTH_DEADLINE_S):
            await _store_and_read(call)
    except TimeoutError:
        raise Refused(503, f"a message could not be stored and read within {HEALTH_DEADLINE_S:g} s") from None
    return text("ok")


async def _store_and_read(call: Call) -> None:
    topic = await call.admin.topic(HEALTH_TOPIC, create=True)
    assert isinstance(topic, PersistentTopic)
    now_ms = topic.clock.time_ms()
    message = build_message(
        MessageMetadata(producer_name="healthcheck", sequence_id=now_ms, publish_time=now_ms),
        b"are you well?",
    )
    stored: asyncio.Future[Position] = asyncio.get_running_loop().create_future()

    def done(position: Position | None, index: int, error: Exception | None) -> None:
        if stored.done():
            return  # Nobody waits any more.
        if position is None:
            stored.set_exception(error or Refused(503, "a message could not be stored"))
        else:
            stored.set_result(position)

    topic.ledger.append([message], 1, done)
    entry = await topic.read_entry(await stored)
    if entry.data != message:
        raise Refused(500, "a message came back other than it was stored")


async def ready(call: Call) -> Answer:
    """`ok` if clients are served."""
    if not call.admin.broker.ready:
        raise Refused(503, "the broker is starting or stopping")
    return text("ok")


async def version(call: Call) -> Answer:
    """The version of this software."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return text(installed("magnetar"))
    except PackageNotFoundError:  # Run from a source tree that nobody has installed.
        return text("0.0.0")


async def shut_down(call: Call) -> None:
    """Let this process drain and end, as on SIGTERM: bundles go to other brokers, clients look up again."""
    if call.admin.shutdown is None:
        raise Refused(
            501, "Not implemented: whoever started this broker does not let it be stopped from here"
        )
    log.warning("broker.told_to_stop", role=call.role)
    asyncio.get_running_loop().call_soon(call.admin.shutdown)


async def check_backlog_quotas(call: Call) -> None:
    """Measure the backlogs of this broker's topics against their quotas now, not when it is next looked."""
    await call.admin.broker.housekeeper.keep([Chore.QUOTAS])


ROUTES: Final = (
    Route("GET", BASE, list_brokers),
    Route("GET", f"{BASE}/{{cluster}}", list_brokers),
    Route("GET", f"{BASE}/leaderBroker", leader),
    Route("GET", f"{BASE}/{{cluster}}/{{broker}}/ownedNamespaces", owned_namespaces),
    Route("GET", f"{BASE}/configuration", configuration_names),
    Route("GET", f"{BASE}/configuration/values", configuration_values),
    Route("GET", f"{BASE}/configuration/runtime", runtime_configuration),
    Route("POST", f"{BASE}/configuration/{{key}}/{{value}}", set_configuration),
    Route("DELETE", f"{BASE}/configuration/{{key}}", delete_configuration),
    Route("GET", f"{BASE}/internal-configuration", internal_configuration),
    Route("GET", f"{BASE}/health", health, query=("topicVersion", "brokerId")),
    Route("GET", f"{BASE}/ready", ready, Guards.NOTHING),
    Route("GET", f"{BASE}/version", version, Guards.NOTHING),
    Route("GET", f"{BASE}/backlog-quota-check", check_backlog_quotas),
    Route(
        "POST",
        f"{BASE}/shutdown",
        shut_down,
        query=("maxConcurrentUnloadPerSec", "forcedTerminateTopic"),
    ),
)
