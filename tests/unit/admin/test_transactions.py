"""Transactions over HTTP, in Pulsar's shapes."""

from __future__ import annotations

import asyncio

import httpx

from magnetar.client.blocking import BlockingClient
from magnetar.client.client import Client
from tests.unit.admin.conftest import Platform

BASE = "/admin/v3/transactions"
TOPIC = "persistent://public/default/t"


async def test_a_transaction_is_told_from_its_begin_to_its_end(
    platform: Platform, http: httpx.AsyncClient
) -> None:
    assert (await http.get(f"{BASE}/coordinatorStats")).json() == {}  # Nobody has used any yet.
    assert (await http.get(f"{BASE}/coordinators")).json() == []
    assert (await http.get(f"{BASE}/transactionMetadata/0/1")).status_code == 404
    async with Client(platform.broker.service_url) as client:
        consumer = await client.subscribe(TOPIC, "s", initial="earliest")
        producer = await client.create_producer(TOPIC)
        plain = await producer.send(b"plain")
        message = await consumer.receive(5)
        assert message is not None
        txn = await client.begin_transaction(timeout_s=30)
        sent = await producer.send(b"one", transaction=txn)
        await consumer.acknowledge_cumulative(message, transaction=txn)
        place = f"{txn.most}/{txn.least}"
        told = (await http.get(f"{BASE}/transactionMetadata/{place}")).json()
        first = f"{sent.ledger_id}:{sent.entry_id}"
        position = f"{plain.ledger_id}:{plain.entry_id}"
        assert told["txnId"] == f"({txn.most},{txn.least})"
        assert (told["status"], told["timeoutAt"]) == ("OPEN", 30_000)
        assert told["producedPartitions"] == {TOPIC: {"startPosition": first, "aborted": False}}
        assert told["ackedPartitions"] == {TOPIC: {"s": {"cumulativeAckPosition": position}}}
        in_buffer = await http.get(f"{BASE}/transactionInBufferStats/public/default/t/{place}")
        assert in_buffer.json()["startPosition"] == first
        in_acks = await http.get(f"{BASE}/transactionInPendingAckStats/public/default/t/s/{place}")
        assert in_acks.json() == {"cumulativeAckPosition": position}
        buffer = (await http.get(f"{BASE}/transactionBufferStats/public/default/t")).json()
        assert (buffer["state"], buffer["maxReadPosition"], buffer["ongoingTxnSize"]) == (
            "Ready",
            position,
            1,
        )
        assert (await http.get(f"{BASE}/pendingAckStats/public/default/t/s")).json()["ongoingTxnSize"] == 1
        held = f"{BASE}/positionStatsInPendingAck/public/default/t/s/{plain.ledger_id}/{plain.entry_id}"
        assert (await http.get(held)).json() == {"state": "PendingAck"}
        stats = (await http.get("/admin/v2/persistent/public/default/t/stats")).json()
        assert stats["ongoingTxnCount"] == 1
        slow = (await http.get(f"{BASE}/slowTransactions/0", params={"coordinatorId": txn.most})).json()
        assert list(slow) == [told["txnId"]]
        assert (await http.get(f"{BASE}/slowTransactions/600000")).json() == {}
        coordinators = (await http.get(f"{BASE}/coordinators")).json()
        assert [each["id"] for each in coordinators] == list(range(16))
        assert coordinators[0]["brokerServiceUrl"] == platform.broker.service_url
        one = (await http.get(f"{BASE}/coordinatorStats", params={"coordinatorId": txn.most})).json()
        assert (one["state"], one["leastSigBits"], one["ongoingTxnSize"]) == ("Ready", 1, 1)
        every = (await http.get(f"{BASE}/coordinatorStats")).json()
        assert every[str(txn.most)] == one
        log = (await http.get(f"{BASE}/coordinatorInternalStats/{txn.most}")).json()["transactionLogStats"]
        assert log["managedLedgerName"] == f"pulsar/system/persistent/__transaction_log_{txn.most}"
        log = (await http.get(f"{BASE}/pendingAckInternalStats/public/default/t/s")).json()
        assert log["pendingAckLogStats"]["managedLedgerInternalStats"]["numberOfEntries"] == 1

        assert (await http.post(f"{BASE}/abortTransaction/{place}")).status_code == 204
        assert (await http.get(f"{BASE}/transactionMetadata/{place}")).json()["status"] == "ABORTED"
        in_buffer = await http.get(f"{BASE}/transactionInBufferStats/public/default/t/{place}")
        assert in_buffer.json() == {"startPosition": None, "aborted": True}
        stats = (await http.get("/admin/v2/persistent/public/default/t/stats")).json()
        assert (stats["ongoingTxnCount"], stats["abortedTxnCount"]) == (0, 1)
        refused = await http.post(f"{BASE}/abortTransaction/{txn.most}/99")
        assert (refused.status_code, refused.json()["code"]) == (404, "transaction_not_found")


async def test_there_can_be_more_coordinators(http: httpx.AsyncClient) -> None:
    assert (await http.post(f"{BASE}/transactionCoordinator/replicas", json=4)).status_code == 204
    assert len((await http.get(f"{BASE}/coordinatorStats")).json()) == 4
    assert (await http.post(f"{BASE}/transactionCoordinator/replicas", json=6)).status_code == 204
    assert len((await http.get(f"{BASE}/coordinatorStats")).json()) == 6
    for wrong in (6, 2, True, "7", None):
        assert (await http.post(f"{BASE}/transactionCoordinator/replicas", json=wrong)).status_code in (
            400,
            406,
        )


async def test_what_takes_part_in_nothing_says_so(http: httpx.AsyncClient) -> None:
    await http.put("/admin/v2/persistent/public/default/t")
    await http.put("/admin/v2/persistent/public/default/t/subscription/s")
    assert (await http.get(f"{BASE}/transactionBufferStats/public/default/t")).json()["state"] == "NoSnapshot"
    assert (await http.get(f"{BASE}/pendingAckStats/public/default/t/s")).json()["state"] == "None"
    assert (await http.get(f"{BASE}/pendingAckStats/public/default/t/x")).status_code == 404
    assert (await http.get(f"{BASE}/pendingAckInternalStats/public/default/t/s")).status_code == 404
    assert (await http.get(f"{BASE}/transactionBufferStats/public/default/none")).status_code == 404
    assert (await http.get(f"{BASE}/coordinatorInternalStats/0")).status_code == 404


async def test_clients_that_look_up_over_http_find_coordinators(http: httpx.AsyncClient) -> None:
    path = "/admin/v2/persistent/pulsar/system/transaction_coordinator_assign/partitions"
    assert (await http.get(path)).json().get("partitions", 0) == 0  # Looking alone makes none.
    found = await http.get(path, params={"checkAllowAutoCreation": "true"})
    assert found.json()["partitions"] == 16


async def test_a_batch_in_a_transaction_goes_to_any_partition(platform: Platform) -> None:
    await platform.http.put("/admin/v2/persistent/public/default/parts/partitions", json=3)

    def story() -> None:
        with BlockingClient(platform.broker.service_url) as client:
            consumer = client.subscribe("parts", "s", initial="earliest")
            producer = client.create_producer("parts")
            with client.transaction() as txn:
                for number in range(4):
                    assert len(producer.send_batch([b"%d" % number, b"x"], transaction=txn)) == 2
                assert consumer.receive_batch(0.05) is None
            found = [consumer.receive_batch(5) for _ in range(4)]
            assert sorted(batch.payloads[0] for batch in found if batch) == [b"0", b"1", b"2", b"3"]

    await asyncio.to_thread(story)
