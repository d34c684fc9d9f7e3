"""/admin/v2/broker-stats: everything at once, in pieces."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, Final

from magnetar.admin.answers import Answer, encode
from magnetar.admin.errors import Refused
from magnetar.admin.routing import Route
from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.environment.logs import get_logger

if TYPE_CHECKING:
    from magnetar.admin.admin import Admin
    from magnetar.admin.call import Call
    from magnetar.broker.topic import Topic

log = get_logger("magnetar.admin")

BASE: Final = "/admin/v2/broker-stats"
TOPICS_AT_ONCE: Final = 200


async def topics(call: Call) -> Answer:
    """The statistics of all topics of this broker, by namespace, bundle and kind."""
    return Answer(200, _topics(call.admin))


async def _topics(admin: Admin) -> AsyncGenerator[bytes]:
    """One topic after another: the page of many topics is never held whole, nor is the loop."""
    grouped: dict[str, dict[str, dict[str, list[Topic]]]] = {}
    for topic in admin.broker.topics.loaded():
        bundle = await admin.broker.topics.bundle(topic.name)
        kinds = grouped.setdefault(str(topic.name.namespace_name), {}).setdefault(bundle.range, {})
        kinds.setdefault(topic.name.domain, []).append(topic)
    yield b"{"
    for comma, (namespace, bundles) in _listed(grouped):
        yield comma + encode(namespace) + b":{"
        for comma_, (bundle_range, kinds) in _listed(bundles):
            yield comma_ + encode(bundle_range) + b":{"
            for comma__, (domain, members) in _listed(kinds):
                yield comma__ + encode(domain) + b":{"
                for number, topic in enumerate(members):
                    yield (b"," if number else b"") + encode(str(topic.name)) + b":" + encode(topic.stats())
                    await asyncio.sleep(0)
                yield b"}"
            yield b"}"
        yield b"}"
    yield b"}"


def _listed(items: dict[str, Any]) -> list[tuple[bytes, tuple[str, Any]]]:
    return [(b"," if number else b"", pair) for number, pair in enumerate(items.items())]


async def metrics(call: Call) -> Answer:
    """All metrics, as a list of dimensions and values."""
    return Answer(200, _metrics(call.admin))


async def _metrics(admin: Admin) -> AsyncGenerator[bytes]:
    """Samples that follow each other with the same labels become one item."""
    yield b"["
    dimensions: Any = None
    values: dict[str, float] = {}
    written = 0
    for sample in admin.broker.metric_samples():
        if sample.labels != dimensions and values:
            yield (b"," if written else b"") + encode({"dimensions": dimensions, "metrics": values})
            written += 1
            values = {}
            await asyncio.sleep(0)
        dimensions = sample.labels
        values[sample.name] = sample.value
    if values:
        yield (b"," if written else b"") + encode({"dimensions": dimensions, "metrics": values})
    yield b"]"


async def beans(call: Call) -> list[str]:
    """There is no virtual machine, and so no beans."""
    return []


async def load_report(call: Call) -> dict[str, Any]:
    """How much this broker has to do."""
    broker = call.admin.broker
    loaded = list(broker.topics.loaded())
    bundles = [str(bundle) for bundle in broker.ownership.owned]
    processors = os.cpu_count() or 1
    memory, memory_limit = _memory_mb()
    rate_in = sum(topic.flow_in.messages.rate for topic in loaded)
    rate_out = sum(topic.flow_out.messages.rate for topic in loaded)
    bytes_in = sum(topic.flow_in.bytes.rate for topic in loaded)
    bytes_out = sum(topic.flow_out.bytes.rate for topic in loaded)
    return {
        "webServiceUrl": broker.web_service_url,
        "pulsarServiceUrl": broker.service_url,
        "persistentTopicsEnabled": True,
        "nonPersistentTopicsEnabled": True,
        "cpu": {"usage": os.getloadavg()[0] * 100, "limit": processors * 100},
        "memory": {"usage": memory, "limit": memory_limit},
        "directMemory": {"usage": 0.0, "limit": 0.0},
        "bandwidthIn": {"usage": bytes_in * 8 / 1024, "limit": -1.0},
        "bandwidthOut": {"usage": bytes_out * 8 / 1024, "limit": -1.0},
        "msgThroughputIn": bytes_in,
        "msgThroughputOut": bytes_out,
        "msgRateIn": rate_in,
        "msgRateOut": rate_out,
        "lastUpdate": broker.context.clock.time_ms(),
        "lastStats": {},
        "numTopics": len(loaded),
        "numBundles": len(bundles),
        "numConsumers": sum(len(each.consumers) for topic in loaded for each in topic.subscriptions.values()),
        "numProducers": sum(len(topic.producers) for topic in loaded),
        "bundles": bundles,
        "lastBundleGains": [],
        "lastBundleLosses": [],
        "brokerVersionString": "magnetar",
        "protocols": {},
        "advertisedListeners": {},
        "loadReportType": "LocalBrokerData",
    }


def _memory_mb() -> tuple[float, float]:
    """What this process has, and what the machine has, in MiB."""
    page_mb = os.sysconf("SC_PAGE_SIZE") / 1024 / 1024
    with open("/proc/self/statm") as statm:  # A file of the kernel's, not of a disk's: it never blocks.
        resident = int(statm.read().split()[1])
    return resident * page_mb, os.sysconf("SC_PHYS_PAGES") * page_mb


async def memory(call: Call) -> dict[str, Any]:
    """Memory by its owner. There are no arenas; of the entry cache and of the process the sums are told."""
    if call["allocator"] not in ("default", "ml-cache"):
        raise Refused(412, f"Invalid allocator {call['allocator'][:80]}: default or ml-cache")
    if call["allocator"] == "ml-cache":
        used = call.admin.broker.context.ledgers.cache.size
    else:
        used = round(_memory_mb()[0] * 1024 * 1024)
    return {
        "numDirectArenas": 0,
        "numHeapArenas": 0,
        "numThreadLocalCaches": 0,
        "normalCacheSize": 0,
        "smallCacheSize": 0,
        "directArenas": [],
        "heapArenas": [],
        "usedDirectMemory": 0,
        "usedHeapMemory": used,
    }


async def pending_bookie_operations(call: Call) -> dict[str, Any]:
    """Writes that bookies have not answered yet, by namespace and topic."""
    told: dict[str, dict[str, Any]] = {}
    for number, topic in enumerate(call.admin.broker.topics.loaded()):
        if isinstance(topic, PersistentTopic):
            pending = topic.ledger.internal_stats()["pendingAddEntriesCount"]
            told.setdefault(str(topic.name.namespace_name), {})[str(topic.name)] = {
                "dataLedgerOpenOp": 0,
                "dataLedgerCloseOp": 0,
                "dataLedgerCreateOp": 0,
                "pendingAddEntries": pending,
                "cursorLedgerOpenOp": 0,
                "cursorLedgerCloseOp": 0,
                "cursorLedgerCreateOp": 0,
            }
        if number % TOPICS_AT_ONCE == 0:
            await asyncio.sleep(0)
    return told


async def availability(call: Call) -> None:
    """Which broker would have room for a namespace: Pulsar's answer where the load manager does not know it."""
    await call.policies()
    raise Refused(409, "This broker's load manager does not tell what is available for a namespace")


ROUTES: Final = (
    Route("GET", f"{BASE}/allocator-stats/{{allocator}}", memory),
    Route("GET", f"{BASE}/bookieops", pending_bookie_operations),
    Route("GET", f"{BASE}/broker-resource-availability/{{tenant}}/{{namespace}}", availability),
    Route("GET", f"{BASE}/topics", topics),
    Route("GET", f"{BASE}/metrics", metrics),
    Route("GET", f"{BASE}/mbeans", beans),
    Route("GET", f"{BASE}/load-report", load_report),
)
