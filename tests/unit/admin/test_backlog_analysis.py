"""What a subscription has still to get, by reading it."""

from __future__ import annotations

import time

from magnetar.admin.settings import AdminSettings
from magnetar.client.client import Client
from tests.unit.admin.conftest import Platform

TOPIC = "/admin/v2/persistent/public/default/t"
ANALYSE = f"{TOPIC}/subscription/s/analyzeBacklog"


async def publish(platform: Platform) -> None:
    """Four messages in an entry of their own each, one of them for later, then three in one batch."""
    assert (await platform.http.put(f"{TOPIC}/subscription/s")).status_code == 204
    client = Client(platform.broker.service_url)
    try:
        plain = await client.create_producer("t", batching=False)
        for number in range(3):
            await plain.send(b"%d" % number)
        await plain.send(b"later", deliver_at=int(time.time() * 1000) + 3_600_000)
        batched = await client.create_producer("t", batching_max_delay_ms=1000)
        sending = [batched.send(b"%d" % number) for number in range(3)]
        for each in sending:
            await each
    finally:
        await client.close()


async def test_counts_entries_and_messages_by_what_filters_say(platform: Platform) -> None:
    await platform.publish("t", b"before the subscription")
    await publish(platform)
    before = (await platform.http.get(f"{TOPIC}/stats")).json()["subscriptions"]["s"]
    told = (await platform.http.post(ANALYSE)).json()
    messages = told["filterAcceptedMessages"]
    assert (told["filterRescheduledEntries"], told["filterRescheduledMessages"]) == (1, 1)
    assert (told["filterRejectedEntries"], told["markerMessages"], told["aborted"]) == (0, 0, False)
    assert (messages, told["messages"]) == (6, 7)
    assert told["entries"] == told["filterAcceptedEntries"] + 1 == before["msgBacklog"]
    after = (await platform.http.get(f"{TOPIC}/stats")).json()["subscriptions"]["s"]
    assert after["msgBacklog"] == before["msgBacklog"], "nothing was acknowledged by being counted"
    assert (await platform.http.post(f"{TOPIC}/subscription/s/skip/1")).status_code == 204
    assert (await platform.http.post(ANALYSE)).json()["messages"] == 6


async def test_begins_where_it_is_told_and_ends_at_its_limit(platform: Platform) -> None:
    await publish(platform)
    whole = (await platform.http.post(ANALYSE)).json()
    ledger = int(whole["firstMessageId"].partition(":")[0])
    rest = (await platform.http.post(ANALYSE, json={"ledgerId": ledger, "entryId": 2})).json()
    assert rest["entries"] == whole["entries"] - 2
    assert rest["firstMessageId"] == f"{ledger}:2"
    platform.site.admin.settings = AdminSettings(backlog_scan_entries_max=2)
    cut = (await platform.http.post(ANALYSE)).json()
    assert (cut["entries"], cut["aborted"]) == (2, True)
    assert (await platform.http.post(ANALYSE.replace("/s/", "/none/"))).status_code == 404
