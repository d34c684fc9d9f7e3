"""What comes over a socket, however odd, is answered, and the server lives on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping

import httpx
import pytest

from magnetar.admin.answers import Answer
from magnetar.admin.call import Call
from magnetar.admin.routing import Guards, Route
from magnetar.security.authorizer import Action
from magnetar.security.errors import Forbidden
from tests.unit.admin.conftest import SETTINGS, Platform


async def raw(platform: Platform, request: bytes, *, deadline_s: float = 5.0) -> bytes:
    """Send bytes, and read until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", platform.port)
    try:
        writer.write(request)
        async with asyncio.timeout(deadline_s):
            return await reader.read()
    finally:
        writer.close()


async def test_an_offer_to_speak_http_2_costs_no_body(platform: Platform) -> None:
    """Java's HttpClient makes it with every request."""
    request = (
        b"PUT /admin/v2/persistent/public/default/%b/partitions HTTP/1.1\r\nHost: x\r\n"
        b"Connection: Upgrade, HTTP2-Settings%b\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n"
        b"Upgrade: h2c\r\nContent-Length: 1\r\n\r\n3"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", platform.port)
    for name in (b"one", b"two"):  # The second on the same connection.
        writer.write(request % (name, b""))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204 ")
    writer.close()
    for topic in ("one", "two"):
        told = await platform.http.get(f"/admin/v2/persistent/public/default/{topic}/partitions")
        assert told.json()["partitions"] == 3


async def test_paths_are_not_normalised(platform: Platform) -> None:
    for path in (b"/admin/v2/tenants/..", b"/admin/v2/tenants/."):
        answer = await raw(platform, b"PUT " + path + b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 412 ")
        assert b"Tenant name is not valid" in answer
    path = b"/admin/v2/brokers/configuration/superUserRoles/../x"
    answer = await raw(platform, b"POST " + path + b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 404 ")
    path = b"/admin/v2/brokers/configuration/superUserRoles/.."
    answer = await raw(platform, b"POST " + path + b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert (await platform.http.get("/admin/v2/brokers/configuration/values")).json() == {
        "superUserRoles": ".."
    }


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x00\x01\x02\x03\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nhost x\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n" + b"x: " + b"y" * 100_000 + b"\r\n\r\n",
        b"GET /" + b"y" * 100_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
        b"POST /admin/v2/tenants/x HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
async def test_what_is_no_request_is_refused_and_the_connection_closed(
    platform: Platform, request_bytes: bytes
) -> None:
    answer = await raw(platform, request_bytes)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["reason"]
    assert (await platform.http.get("/admin/v2/brokers/ready")).status_code == 200


async def test_a_client_that_says_nothing_is_let_go(platform: Platform) -> None:
    assert await raw(platform, b"") == b""
    assert await raw(platform, b"GET /metrics HTTP/1.1\r\nx: ") == b""


async def test_a_body_that_never_comes(platform: Platform) -> None:
    request = b"PUT /admin/v2/tenants/x HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{"
    assert (await raw(platform, request)).startswith(b"HTTP/1.1 408 ")


async def test_bodies_are_bounded(http: httpx.AsyncClient) -> None:
    giant = b"x" * (SETTINGS.body_bytes_max + 1)
    assert (await http.put("/admin/v2/tenants/x", content=giant)).status_code == 413

    async def dripping() -> AsyncGenerator[bytes]:  # Without a length in front.
        for _ in range(SETTINGS.body_bytes_max // 1024 + 2):
            yield b"x" * 1024

    assert (await http.put("/admin/v2/tenants/x", content=dripping())).status_code == 413
    assert (await http.get("/admin/v2/tenants")).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[" * 30_000,
        b'{"a":' * 5_000,
        b"\xff\xfe{}",
        b"NaN",
        b"'x'",
        b'{"adminRoles":' + b"[" * 500 + b"]" * 500 + b"}",
        b'{"unknown":' + b"[" * 20_000 + b"]" * 20_000 + b"}",
    ],
)
async def test_bodies_that_are_no_json(http: httpx.AsyncClient, body: bytes) -> None:
    answer = await http.put("/admin/v2/tenants/x", content=body)
    assert answer.status_code == 400, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert len(answer.json()["reason"]) < 1000


async def test_methods_and_paths_that_are_not_there(http: httpx.AsyncClient) -> None:
    answer = await http.patch("/admin/v2/tenants")
    assert answer.status_code == 405
    assert "GET" in answer.json()["reason"]
    for path in (
        "/",
        "/admin",
        "/admin/v2",
        "/admin/v2/nothing",
        "/admin/v2/tenants/a/b",
        "/favicon.ico",
        "//",
        "/admin//v2/tenants",
    ):
        answer = await http.get(path)
        assert answer.status_code == 404, path
        assert "reason" in answer.json()
    assert (await http.head("/admin/v2/tenants")).status_code == 200


async def test_odd_queries(http: httpx.AsyncClient) -> None:
    topics = "/admin/v2/namespaces/public/default/topics"
    assert (await http.get(f"{topics}?includeSystemTopic=perhaps")).status_code == 400
    assert (await http.get(f"{topics}?" + "&".join(f"a{n}=1" for n in range(500)))).status_code == 400
    assert (await http.get(f"{topics}?&&=&%ff=%ff&mode=ALL")).status_code == 200


class NobodyMay:
    """Refuses, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str | None, Action, str]] = []

    async def authorize(self, role: str | None, action: Action, resource: str) -> None:
        self.asked.append((role, action, resource))
        raise Forbidden(role, action.value, resource)


async def test_every_route_asks_the_one_authorizer(platform: Platform) -> None:
    """Save those that machines watch by, and the list of clusters."""
    nobody = NobodyMay()
    platform.site.admin.authorizer = nobody
    open_to_all = {
        "/metrics",
        "/status.html",
        "/admin/v2/clusters",
        "/admin/v2/brokers/ready",
        "/admin/v2/brokers/version",
    }
    guarded = 0
    for route in platform.site.api.table.routes:
        path = route.path
        for name, value in (
            ("domain", "persistent"),
            ("tenant", "public"),
            ("namespace", "default"),
            ("topic", "t"),
        ):
            path = path.replace(f"{{{name}}}", value)
        while "{" in path:
            path = path[: path.index("{")] + "1" + path[path.index("}") + 1 :]
        answer = await platform.http.request(route.method, path)
        if route.guards is Guards.NOTHING:
            assert route.path in open_to_all
            continue
        assert answer.status_code == 403, f"{route.method} {path}: {answer.text}"
        guarded += 1
    assert guarded == len(nobody.asked) > 300
    assert {resource for _, _, resource in nobody.asked} == {
        "cluster",
        "public",
        "public/default",
        "persistent://public/default/t",
    }


async def test_who_asks_is_told_to_the_authorizer(platform: Platform) -> None:
    async def by_header(headers: Mapping[str, str]) -> str | None:
        return headers.get("x-role")

    nobody = NobodyMay()
    platform.site.admin.authorizer = nobody
    platform.site.admin.identify = by_header
    answer = await platform.http.get("/admin/v2/tenants/public", headers={"X-Role": "someone"})
    assert (answer.status_code, nobody.asked) == (403, [("someone", Action.ADMINISTER_TENANT, "public")])


async def test_a_route_that_breaks_is_an_answer_not_a_hang(platform: Platform) -> None:
    async def breaks(call: Call) -> None:
        raise ZeroDivisionError("oops")

    async def breaks_late(call: Call) -> Answer:
        async def parts() -> AsyncGenerator[bytes]:
            yield b"[1,"
            raise ZeroDivisionError("oops")

        return Answer(200, parts())

    platform.site.api.table.add(Route("GET", "/breaks", breaks))
    platform.site.api.table.add(Route("GET", "/breaks/late", breaks_late))
    answer = await platform.http.get("/breaks")
    assert answer.status_code == 500
    assert "ZeroDivisionError" in answer.json()["reason"]
    with pytest.raises(httpx.RemoteProtocolError):
        await platform.http.get("/breaks/late")
    assert (await platform.http.get("/admin/v2/brokers/ready")).status_code == 200


async def test_a_slow_route_is_answered_and_goes_on(platform: Platform) -> None:
    platform.site.admin.settings = SETTINGS.model_copy(update={"request_timeout_s": 0.05})
    may_end, ended = asyncio.Event(), asyncio.Event()

    async def slow(call: Call) -> None:
        await may_end.wait()
        ended.set()

    platform.site.api.table.add(Route("GET", "/slow", slow))
    answer = await platform.http.get("/slow")
    assert answer.status_code == 503
    assert not ended.is_set()
    may_end.set()
    async with asyncio.timeout(5):
        await ended.wait()


async def test_headers_cannot_be_broken_out_of(platform: Platform) -> None:
    async def header(call: Call) -> Answer:
        return Answer(200, b"{}", headers={"X-Name": "a\r\nx-evil: 1\r\n\r\nbody ü"})

    platform.site.api.table.add(Route("GET", "/header", header))
    answer = await platform.http.get("/header")
    assert "x-evil" not in answer.headers
    assert answer.headers.raw[0][1] == "a??x-evil: 1????body ü".encode()


async def test_many_requests_in_one_breath(platform: Platform) -> None:
    """Pipelined, answered in order."""
    one = b"GET /admin/v2/brokers/ready HTTP/1.1\r\nhost: x\r\n\r\n"
    last = one.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    answer = await raw(platform, one * 20 + last)
    assert answer.count(b"HTTP/1.1 200") == 21


async def test_long_lists_come_in_pieces(platform: Platform) -> None:
    async def numbers(call: Call) -> list[int]:
        return list(range(int(call.query["count"])))

    platform.site.api.table.add(Route("GET", "/numbers", numbers))
    for count in (0, 1, 999, 1000, 1001, 2000, 12_345):
        answer = await platform.http.get(f"/numbers?count={count}")
        assert answer.json() == list(range(count))
        assert ("transfer-encoding" in answer.headers) == (count > 1000)


async def test_topics_of_other_brokers_are_redirected_to(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    from magnetar.broker.broker import LookupResult
    from magnetar.naming import TopicName

    base = "/admin/v2/persistent/public/default"
    await platform.http.put(f"{base}/t")
    await platform.http.put(f"{base}/p/partitions", content="2")

    async def elsewhere(name: TopicName) -> LookupResult:
        return LookupResult("pulsar://far:6650", "http://far:8080", here=False)

    monkeypatch.setattr(platform.broker, "lookup", elsewhere)
    for method, path in (
        ("GET", "t/stats?authoritative=false&a=b"),
        ("PUT", "t/unload?a=b"),
        ("POST", "t%20x/terminate?a=b"),
    ):
        answer = await platform.http.request(method, f"{base}/{path}")
        assert answer.status_code == 307, answer.text
        bare = path.partition("?")[0]
        assert answer.headers["location"] == f"http://far:8080{base}/{bare}?a=b&authoritative=true"
    answer = await platform.http.post(f"{base}/p/subscription/s/skip_all")
    assert answer.status_code == 503
    assert "http://far:8080" in answer.json()["reason"]


async def test_of_two_who_make_a_topic_one_is_told_that_it_exists(platform: Platform) -> None:
    answers = await asyncio.gather(
        *(platform.http.put("/admin/v2/persistent/public/default/t") for _ in range(5))
    )
    assert sorted(answer.status_code for answer in answers) == [204, 409, 409, 409, 409]


async def test_an_answer_that_nobody_reads_is_cut(platform: Platform) -> None:
    ended = asyncio.Event()

    async def endless(call: Call) -> Answer:
        async def parts() -> AsyncGenerator[bytes]:
            try:
                while True:
                    yield b"x" * 65536
            finally:
                ended.set()

        return Answer(200, parts())

    platform.site.api.table.add(Route("GET", "/endless", endless))
    _, writer = await asyncio.open_connection("127.0.0.1", platform.port, limit=1024)
    writer.transport.pause_reading()  # type: ignore[attr-defined]  # It can be read from, too.
    writer.write(b"GET /endless HTTP/1.1\r\nhost: x\r\n\r\n")
    async with asyncio.timeout(10):
        await ended.wait()
    writer.transport.abort()


async def test_too_many_connections_are_closed_at_once(platform: Platform) -> None:
    opened = [
        await asyncio.open_connection("127.0.0.1", platform.port) for _ in range(SETTINGS.connections_max)
    ]
    try:
        assert await raw(platform, b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n") == b""
    finally:
        for _, writer in opened:
            writer.close()
    async with asyncio.timeout(5):
        while (await platform.http.get("/admin/v2/brokers/ready")).status_code != 200:
            pass


async def test_too_many_requests_are_told_so(platform: Platform) -> None:
    platform.site.admin.settings = SETTINGS.model_copy(update={"requests_max": 1})
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def slow(call: Call) -> None:
        begun.set()
        await may_end.wait()

    platform.site.api.table.add(Route("GET", "/slow", slow))
    first = asyncio.get_running_loop().create_task(platform.http.get("/slow"))
    async with asyncio.timeout(5):
        await begun.wait()
    assert (await platform.http.get("/admin/v2/brokers/ready")).status_code == 503
    may_end.set()
    assert (await first).status_code == 204
