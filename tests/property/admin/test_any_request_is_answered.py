"""Whatever is asked of any route, with whatever body, is answered: never 500, never nothing."""

from __future__ import annotations

import asyncio
import json
import random
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from magnetar.admin.routing import Route
from magnetar.admin.site import Site
from tests.unit.admin.conftest import Platform, open_platform

REQUESTS = 1000

SEGMENTS = [
    "public", "default", "standalone", "t", "p", "s", "x-partition-0", "p-partition-1", "p-partition-9", "..", ".", "",
    "0", "1", "-1", "99999999999999999999", "9223372036854775807", "NaN", "1e9", "0x00000000_0x40000000", "LARGEST",
    "a b", "ü/ü", "%", "\x00", "\n", "x" * 300, "__change_events", "pulsar.dedup", "pulsar", "system", "maxTenants",
]  # fmt: skip
QUERIES = [
    "", "force=true", "applied=true", "isGlobal=true", "perPartition=false", "mode=ALL", "backlogQuotaType=message_age",
    "messageTTL=x", "messagePosition=-5&initialPosition=earliest", "authoritative=perhaps", "key=k", "bundle=x", "%%%=&&",
]  # fmt: skip


def some_json(dice: random.Random, depth: int = 0) -> Any:
    kind = dice.randrange(10 if depth < 3 else 7)
    match kind:
        case 0:
            return None
        case 1:
            return dice.choice([True, False])
        case 2 | 3:
            return dice.choice([0, 1, -1, 3, 10**9, 2**31, 2**63, -(2**63), 10**30])
        case 4:
            return dice.choice([0.5, -1.5, 1e300])
        case 5 | 6:
            return dice.choice([*SEGMENTS, "true", "10", "FULL", "Shared", "persistent://public/default/t"])
        case 7:
            return [some_json(dice, depth + 1) for _ in range(dice.randrange(4))]
        case _:
            return {dice.choice(FIELDS): some_json(dice, depth + 1) for _ in range(dice.randrange(6))}


FIELDS = [
    "partitions", "properties", "ledgerId", "entryId", "batchIndex", "isExcluded", "type", "schema", "limit", "limitSize",
    "limitTime", "policy", "retentionTimeInMinutes", "retentionSizeInMB", "bundles", "numBundles", "boundaries",
    "allowedClusters", "adminRoles", "replication_clusters", "auth_policies", "namespace_auth", "bookkeeperEnsemble",
    "bookkeeperWriteQuorum", "bookkeeperAckQuorum", "topicType", "defaultNumPartitions", "brokers", "serviceUrl", "version",
    "deleted", "backlog_quota_map", "destination_storage", "?",
]  # fmt: skip


def some_body(dice: random.Random) -> bytes:
    if dice.random() < 0.15:
        return dice.choice([b"", b"null", b"{", b"\xff", b"[" * 1000, b"NaN", b'"' + b"x" * 1000 + b'"'])
    return json.dumps(some_json(dice)).encode()


def some_path(dice: random.Random, route: Route) -> str:
    def fill(match: re.Match[str]) -> str:
        likely = {
            "domain": ["persistent", "non-persistent"],
            "tenant": ["public"] * 9 + ["nobody"],
            "namespace": ["default"] * 9 + ["nothing"],
            "topic": ["t", "p", "t", "p-partition-0", *SEGMENTS],
            "subscription": ["s", "s", *SEGMENTS],
        }
        return quote(dice.choice(likely.get(match[1], SEGMENTS)), safe="")

    return re.sub(r"\{(\w+)\}", fill, route.path)


async def ask(site: Site, method: str, path: str, query: str, body: bytes) -> tuple[int, bytes]:
    sent: list[dict[str, Any]] = []

    said = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if not said:
            await asyncio.Event().wait()  # The client stays until it is answered.
        return said.pop()

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [],
    }
    async with asyncio.timeout(30):
        await site(scope, receive, send)
    status: int = sent[0]["status"]
    return status, b"".join(message.get("body", b"") for message in sent[1:])


async def prepare(platform: Platform) -> None:
    """Something to be asked for, whatever has become of it."""
    site = platform.site
    for key in (await platform.resources.dynamic_configuration()).values:
        await ask(site, "DELETE", f"/admin/v2/brokers/configuration/{key}", "", b"")
    tenant = b'{"allowedClusters": ["standalone"]}'
    for method, path, query, body in (
        ("PUT", "tenants/public", "", tenant),
        ("POST", "tenants/public", "", tenant),
        ("DELETE", "namespaces/public/default", "force=true", b""),
        ("PUT", "namespaces/public/default", "", b""),
        ("PUT", "persistent/public/default/p/partitions", "", b"3"),
        ("PUT", "persistent/public/default/t/subscription/s", "", b""),
    ):
        await ask(site, method, f"/admin/v2/{path}", query, body)
    await platform.publish("t", b"x")


@pytest.mark.parametrize("seed", range(3))
async def test_any_request_is_answered(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    async with open_platform(tmp_path) as platform:
        site = platform.site
        routes = [route for route in site.api.table.routes if route.documented]
        for number in range(REQUESTS):
            if number % 50 == 0:
                await prepare(platform)
            route = dice.choice(routes)
            path, query, body = some_path(dice, route), dice.choice(QUERIES), some_body(dice)
            status, answer = await ask(site, route.method, path, query, body)
            what = f"{route.method} {path}?{query} {body[:200]!r}: {status} {answer[:300]!r}"
            assert status != 500, what
            assert status in (200, 204, 307) or 400 <= status < 504, what
            if status >= 400:
                assert json.loads(answer)["reason"], what
            if status == 204:
                assert answer == b"", what
