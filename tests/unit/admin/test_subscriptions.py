"""Subscriptions over HTTP: made, moved, skipped, peeked into, deleted."""

from __future__ import annotations

import json

import httpx
import pytest

from tests.unit.admin.conftest import Platform

BASE = "/admin/v2/persistent/public/default"
LATEST = {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1}
EARLIEST = {"ledgerId": -1, "entryId": -1}


async def backlog(http: httpx.AsyncClient, topic: str, subscription: str = "s") -> int:
    told = (await http.get(f"{BASE}/{topic}/stats")).json()
    number: int = told["subscriptions"][subscription]["msgBacklog"]
    return number


async def test_made_at_the_end_or_where_the_body_says(platform: Platform) -> None:
    http = platform.http
    await platform.publish("t", b"0", b"1", b"2")
    third = (await http.get(f"{BASE}/t/lastMessageId")).json()
    second = {**third, "entryId": third["entryId"] - 1}
    for name, body, behind in (
        ("none", None, 0),
        ("latest", LATEST, 0),
        ("earliest", EARLIEST, 3),
        ("second", second, 2),
        ("after", {**second, "isExcluded": True}, 1),
    ):
        answer = await http.put(f"{BASE}/t/subscription/{name}", json=body)
        assert answer.status_code == 204, answer.text
        assert await backlog(http, "t", name) == behind, name
    assert (await http.put(f"{BASE}/t/subscription/none")).status_code == 409
    assert (await http.put(f"{BASE}/t/subscription/pulsar.dedup")).status_code == 412
    assert (await http.put(f"{BASE}/t/subscription/bad", json={"ledgerId": "x"})).status_code == 400
    assert (await http.put(f"{BASE}/t/subscription/bad", json=[1])).status_code == 400
    names = (await http.get(f"{BASE}/t/subscriptions")).json()
    assert names == ["after", "earliest", "latest", "none", "second"]


async def test_a_topic_comes_with_its_first_subscription(http: httpx.AsyncClient) -> None:
    assert (
        await http.put(f"{BASE}/new/subscription/s", json={**EARLIEST, "properties": {"k": "v"}})
    ).status_code == 204
    assert (await http.get(f"{BASE}/new/subscription/s/properties")).json() == {"k": "v"}
    assert (await http.put(f"{BASE}/new/subscription/s/properties", json={"x": "y"})).status_code == 204
    await http.put(f"{BASE}/new/unload")
    assert (await http.get(f"{BASE}/new/subscription/s/properties")).json() == {"x": "y"}


async def test_nobody_may_name_ledgers_that_end_with_a_subscription(http: httpx.AsyncClient) -> None:
    """They might be anybody's: deleting the subscription would delete them."""
    named = {"magnetar.ledgers": "1"}
    refused = await http.put(f"{BASE}/own/subscription/s", json={**EARLIEST, "properties": named})
    assert (refused.status_code, "broker's own" in refused.text) == (405, True)
    assert (await http.put(f"{BASE}/own/subscription/s", json=EARLIEST)).status_code == 204
    assert (await http.put(f"{BASE}/own/subscription/s/properties", json=named)).status_code == 405
    assert (await http.get(f"{BASE}/own/subscription/s/properties")).json() == {}


async def test_all_partitions_together(http: httpx.AsyncClient) -> None:
    await http.put(f"{BASE}/p/partitions", content="3")
    assert (await http.put(f"{BASE}/p/subscription/s")).status_code == 204
    assert (await http.put(f"{BASE}/p/subscription/s")).status_code == 409
    assert (await http.get(f"{BASE}/p-partition-2/subscriptions")).json() == ["s"]
    assert (await http.delete(f"{BASE}/p-partition-2/subscription/s")).status_code == 204
    assert (await http.put(f"{BASE}/p/subscription/s")).status_code == 204, "one was missing"
    assert (await http.post(f"{BASE}/p/subscription/s/skip_all")).status_code == 204
    assert (await http.post(f"{BASE}/p/subscription/s/skip/1")).status_code == 405
    assert (await http.post(f"{BASE}/p/subscription/s/resetcursor", json=EARLIEST)).status_code == 405
    assert (await http.post(f"{BASE}/p/subscription/s/resetcursor/0")).status_code == 204
    assert (await http.delete(f"{BASE}/p/subscription/s")).status_code == 204
    assert (await http.delete(f"{BASE}/p/subscription/s")).status_code == 404


async def test_deleting_under_a_consumer_needs_force(platform: Platform) -> None:
    from magnetar.client.client import Client

    http = platform.http
    client = Client(platform.broker.service_url)
    try:
        await client.subscribe("t", "s")
        assert (await http.delete(f"{BASE}/t/subscription/s")).status_code == 412
        assert (await http.delete(f"{BASE}/t/subscription/s?force=true")).status_code == 204
    finally:
        await client.close()


async def test_moving_back_and_forth(platform: Platform) -> None:
    http = platform.http
    await http.put(f"{BASE}/t/subscription/s", json=EARLIEST)
    await platform.publish("t", b"0", b"1", b"2", b"3")
    sub = f"{BASE}/t/subscription/s"
    assert (await http.post(f"{sub}/skip/2")).status_code == 204
    assert await backlog(http, "t") == 2
    assert (await http.post(f"{sub}/skip_all")).status_code == 204
    assert await backlog(http, "t") == 0
    assert (await http.post(f"{sub}/resetcursor/0")).status_code == 204
    assert await backlog(http, "t") == 4
    last = (await http.get(f"{BASE}/t/lastMessageId")).json()
    assert (await http.post(f"{sub}/resetcursor", json={**last, "entryId": 1})).status_code == 204
    assert await backlog(http, "t") == 3
    assert (await http.post(f"{sub}/expireMessages", json={**last, "entryId": 2})).status_code == 204
    assert await backlog(http, "t") == 1
    assert (await http.post(f"{sub}/expireMessages/1000")).status_code == 204
    assert await backlog(http, "t") == 1, "it is not that old"
    assert (await http.post(f"{BASE}/t/all_subscription/expireMessages/0")).status_code == 204
    assert await backlog(http, "t") == 0
    assert (await http.post(f"{sub}/resetcursor", content=b"{bad")).status_code == 400
    assert (await http.post(f"{sub}/resetcursor/yesterday")).status_code == 400
    assert (await http.post(f"{sub}/expireMessages", json={**last, "entryId": 900})).status_code == 412
    assert (await http.post(f"{sub}/skip/-1")).status_code == 412
    for path in ("skip_all", "skip/1", "resetcursor/0", "expireMessages/1"):
        assert (await http.post(f"{BASE}/t/subscription/none/{path}")).status_code == 404, path


async def test_a_message_as_it_is_stored(platform: Platform) -> None:
    http = platform.http
    await http.put(f"{BASE}/t/subscription/s", json=EARLIEST)
    from magnetar.client.client import Client

    client = Client(platform.broker.service_url)
    try:
        producer = await client.create_producer("t", batching=False, compression="zlib")
        await producer.send(
            b"hello" * 100,
            key="k",
            properties={"myKey": "välue", "line": "a\nb"},
            event_time=1_700_000_000_000,
        )
        await producer.send(b"second")
    finally:
        await client.close()
    answer = await http.get(f"{BASE}/t/subscription/s/position/1")
    assert answer.content == b"hello" * 100
    headers = answer.headers
    assert headers["X-Pulsar-Message-ID"].endswith(":0")
    assert b"X-Pulsar-PROPERTY" in [name for name, _ in headers.raw]  # Java's clients want the capitals.
    assert json.loads(headers["X-Pulsar-PROPERTY"]) == {"myKey": "välue", "line": "a\nb"}
    assert headers["X-Pulsar-partition-key"] == "k"
    assert headers["X-Pulsar-event-time"] == "2023-11-14T22:13:20.000Z"
    assert headers["X-Pulsar-Publish-Time"].endswith("Z")
    assert headers["X-Pulsar-compression"] == "ZLIB"
    assert headers["X-Pulsar-Broker-Entry-METADATA-index"] == "0"
    assert (await http.get(f"{BASE}/t/subscription/s/position/2")).content == b"second"
    missing = await http.get(f"{BASE}/t/subscription/s/position/3")
    assert (missing.status_code, missing.json()) == (
        404,
        {"reason": "Message not found", "code": "message_not_found"},
    )
    assert (await http.get(f"{BASE}/t/subscription/s/position/0")).status_code == 412
    last = (await http.get(f"{BASE}/t/lastMessageId")).json()
    ledger = last["ledgerId"]
    assert (await http.get(f"{BASE}/t/ledger/{ledger}/entry/1")).content == b"second"
    for unknown in (f"{ledger}/entry/2", "999/entry/0", "-1/entry/-1"):
        assert (await http.get(f"{BASE}/t/ledger/{unknown}")).status_code == 404, unknown
    assert (await http.get(f"{BASE}/t/ledger/x/entry/0")).status_code == 400


@pytest.mark.parametrize(
    ("initial", "number", "expected"),
    [("earliest", 1, b"0"), ("earliest", 3, b"2"), ("latest", 1, b"4"), ("latest", 5, b"0"), ("latest", 99, b"0"), ("earliest", 99, b"4")],
)  # fmt: skip
async def test_examining(platform: Platform, initial: str, number: int, expected: bytes) -> None:
    await platform.publish("t", *(b"%d" % each for each in range(5)))
    query = {"initialPosition": initial, "messagePosition": str(number)}
    assert (await platform.http.get(f"{BASE}/t/examinemessage", params=query)).content == expected


async def test_the_first_message_since(platform: Platform) -> None:
    await platform.publish("t", b"0", b"1")
    http = platform.http
    assert (await http.get(f"{BASE}/t/messageid/0")).json()["entryId"] == 0
    assert (await http.get(f"{BASE}/t/messageid/99999999999999")).json()["entryId"] == 2
    await http.put(f"{BASE}/p/partitions", content="2")
    assert (await http.get(f"{BASE}/p/messageid/0")).status_code == 405


async def test_a_batch_can_be_entered_in_the_middle(platform: Platform) -> None:
    """Reset to a batch index: what stands before it counts as acknowledged."""
    from magnetar.client.client import Client

    http = platform.http
    client = Client(platform.broker.service_url)
    try:
        producer = await client.create_producer("b", batching_max_delay_ms=1000, batching_max_messages=4)
        waiting = [producer.send_nowait(b"%d" % each) for each in range(4)]
        await producer.flush()
        ids = [await each for each in waiting]
        assert len({each.entry_id for each in ids}) == 1
        place = {"ledgerId": ids[2].ledger_id, "entryId": ids[2].entry_id, "batchIndex": 2}
        assert (await http.put(f"{BASE}/b/subscription/s", json=place)).status_code == 204
        consumer = await client.subscribe("b", "s")
        got = [await consumer.receive(5.0) for _ in range(2)]
        assert [message.data if message else None for message in got] == [b"2", b"3"]
    finally:
        await client.close()


async def test_backlogs_of_a_whole_namespace(platform: Platform) -> None:
    http = platform.http
    for topic in ("a", "b"):
        for name in ("s", "r"):
            await http.put(f"{BASE}/{topic}/subscription/{name}", json=EARLIEST)
        await platform.publish(topic, b"x")
    base = "/admin/v2/namespaces/public/default"
    assert (await http.post(f"{base}/clearBacklog/s")).status_code == 204
    assert [await backlog(http, topic, name) for topic in "ab" for name in "sr"] == [0, 1, 0, 1]
    assert (await http.post(f"{base}/clearBacklog")).status_code == 204
    assert [await backlog(http, topic, "r") for topic in "ab"] == [0, 0]
    assert (await http.post(f"{base}/unsubscribe/r")).status_code == 204
    assert (await http.get(f"{BASE}/a/subscriptions")).json() == ["s"]
