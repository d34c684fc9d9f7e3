"""Single messages taken back from a subscription, whatever form their ids come in."""

from __future__ import annotations

import base64
import time
from typing import Any

import pytest

from magnetar.admin.routes.skipping import message_ids
from magnetar.broker.skipping import Skipped
from magnetar.client.client import Client
from magnetar.managed_ledger import Position
from magnetar.policies.errors import BadValue
from magnetar.protocol.pulsar_pb2 import MessageIdData
from tests.unit.admin.conftest import Platform

ID = MessageIdData(ledgerId=3, entryId=4, batch_index=5)
AS_CLIENTS_WRITE_IT = base64.b64encode(ID.SerializeToString()).decode()
WHOLE, PART = Skipped(Position(3, 4)), Skipped(Position(3, 4), 5)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ([{"ledgerId": 3, "entryId": 4}], [WHOLE]),
        ([{"ledgerId": 3, "entryId": "4", "batchIndex": 5}], [PART]),
        ({"type": "messageId", "messageIds": [{"ledgerId": 3, "entryId": 4, "batchIndex": None}]}, [WHOLE]),
        ({"type": "byteArray", "messageIds": [AS_CLIENTS_WRITE_IT]}, [PART]),
        (["3:4", "3:4:5"], [WHOLE, PART]),
        ({"type": "map_of_ledgerId_entryId", "messageIds": {"3": "4"}}, [WHOLE]),
        ({"3": 4}, [WHOLE]),
        ([], []),
    ],
)
def test_every_form_is_understood(said: Any, meant: list[Skipped]) -> None:
    assert message_ids(said) == meant


@pytest.mark.parametrize(
    "said", ["3:4", 7, [7], ["x"], ["3"], ["3:4:5:6"], ["a:b"], [{}], ["-1:4"], {"a": "b"}, [["3", "4"]]]
)
def test_what_is_no_id_is_refused(said: Any) -> None:
    with pytest.raises(BadValue, match="Invalid message id"):
        message_ids(said)


async def test_a_message_for_later_is_taken_back(platform: Platform) -> None:
    topic, path = "persistent://public/default/t", "/admin/v2/persistent/public/default/t"
    assert (await platform.http.put(path)).status_code == 204
    assert (await platform.http.put(f"{path}/subscription/s")).status_code == 204
    client = Client(platform.broker.service_url)
    try:
        producer = await client.create_producer(topic, batching=False)
        ids = [
            await producer.send(b"%d" % number, deliver_at=round(time.time() * 1000) + 300)
            for number in range(3)
        ]
        gone = {"ledgerId": ids[1].ledger_id, "entryId": ids[1].entry_id}
        skip = f"{path}/subscription/s/skipByMessageIds"
        assert (await platform.http.post(skip, json=[gone])).status_code == 204
        assert (await platform.http.post(skip, json=["99999:0"])).status_code == 412
        assert (await platform.http.post(skip, json="nonsense")).status_code == 400
        consumer = await client.subscribe(topic, "s", type="shared")
        received = [await consumer.receive() for _ in range(2)]
        assert [message.data for message in received if message is not None] == [b"0", b"2"]
        told = (await platform.http.get(f"{path}/stats")).json()
        assert told["subscriptions"]["s"]["msgBacklog"] == 2
    finally:
        await client.close()
