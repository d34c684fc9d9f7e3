"""Messages as Arrow columns."""

from __future__ import annotations

import json
import random

import pyarrow as pa
import pytest

from magnetar.client import Client, OutgoingMessage
from magnetar.client.columns import json_columns
from magnetar.client.errors import InvalidUse
from magnetar.protocol.errors import BatchUnopenable
from magnetar.protocol.ids import MessageId
from magnetar.protocol.message import build_message
from magnetar.protocol.pulsar_pb2 import MessageMetadata
from tests.unit.client.fake_broker import FakeBroker
from tests.unit.client.test_consuming import TOPIC

SCHEMA = pa.schema([("id", pa.int64()), ("price", pa.float64()), ("name", pa.string())])


def binary(*values: bytes | None) -> pa.Array:
    return pa.array(values, pa.binary())


async def test_entries_become_one_record_batch(broker: FakeBroker, client: Client) -> None:
    producer = await client.create_producer("t")
    outgoing = [
        OutgoingMessage(b"one", key="k", event_time=5, properties={"a": "1", "b": "2"}),
        OutgoingMessage(b"two"),
    ]
    await producer.send_batch_nowait(outgoing)
    await producer.send_batch_nowait([b"three"])
    consumer = await client.subscribe("t", "s")
    first = await consumer.receive_columns(max_messages=1, timeout_s=2)
    assert first is not None
    assert len(first) == 2, "entries are not divided"
    rows = first.record_batch.to_pylist()
    assert [row["value"] for row in rows] == [b"one", b"two"]
    assert [row["__key"] for row in rows] == [b"k", None]
    assert {row["__topic"] for row in rows} == {TOPIC}
    assert dict(rows[0]["__messageProperties"]) == {"a": "1", "b": "2"}
    assert rows[0]["__eventTime"].timestamp() == pytest.approx(0.005)
    assert rows[1]["__eventTime"] is None
    ids = [MessageId.from_bytes(row["__messageId"]) for row in rows]
    assert [each.batch_index for each in ids] == [0, 1]
    rest = await consumer.receive_columns(timeout_s=2)
    assert rest is not None
    assert rest.record_batch.column("value").to_pylist() == [b"three"]
    assert await consumer.receive_columns(timeout_s=0.01) is None


async def test_columns_are_acknowledged_as_what_they_were_made_of(broker: FakeBroker, client: Client) -> None:
    producer = await client.create_producer("t")
    for number in range(3):
        await producer.send_batch_nowait([b"%d" % number, b"x"])
    consumer = await client.subscribe("t", "s")
    taken = 0
    while taken < 6:
        columns = await consumer.receive_columns(timeout_s=2)
        assert columns is not None
        taken += len(columns)
        consumer.acknowledge(columns)
    await consumer.flush_acknowledgements()
    assert sorted(broker.acknowledged) == [(0, [], False), (1, [], False), (2, [], False)]


async def test_what_cannot_be_read_costs_only_itself(broker: FakeBroker, client: Client) -> None:
    producer = await client.create_producer("t")
    await producer.send_batch_nowait([b"one", b"two"])
    encrypted = MessageMetadata(producer_name="p", sequence_id=9, publish_time=1, num_messages_in_batch=2)
    encrypted.encryption_keys.add(key="k", value=b"v")
    broker.topic(TOPIC).entries.append(build_message(encrypted, b"secret"))
    consumer = await client.subscribe("t", "s")
    await producer.send_batch_nowait([b"three"])
    found: list[bytes] = []
    failures = 0
    while len(found) < 3:
        try:
            columns = await consumer.receive_columns(timeout_s=2)
        except BatchUnopenable:
            failures += 1
            continue
        assert columns is not None, f"only {found} came"
        found += columns.record_batch.column("value").to_pylist()
        consumer.acknowledge(columns)
    assert found == [b"one", b"two", b"three"]
    assert failures == 1


def test_json_payloads_become_typed_columns() -> None:
    values = binary(b'{"id": 1, "price": 2.5, "other": [1]}', None, b'{\n "name": "n",\n "id": 3\n}')
    assert json_columns(values, SCHEMA).to_pylist() == [
        {"id": 1, "price": 2.5, "name": None},
        {"id": None, "price": None, "name": None},
        {"id": 3, "price": None, "name": "n"},
    ]
    assert json_columns(binary(), SCHEMA).num_rows == 0
    assert json_columns(binary(None, b"{}"), SCHEMA).to_pylist() == [dict.fromkeys(SCHEMA.names)] * 2


def test_as_many_as_there_are_and_as_large() -> None:
    """Also more than Arrow reads at a time."""
    dice = random.Random(1)
    rows = [{"id": n, "price": n / 2, "name": "x" * dice.randrange(3000)} for n in range(3000)]
    assert json_columns(binary(*(json.dumps(row).encode() for row in rows)), SCHEMA).to_pylist() == rows


@pytest.mark.parametrize("payload", [b"no json", b'{"id": "text"}', b'{"id": 1}{"id": 2}', b"[1]", b'{"id":'])
def test_what_does_not_fit_is_refused(payload: bytes) -> None:
    with pytest.raises(InvalidUse, match="JSON object"):
        json_columns(binary(b'{"id": 7}', payload), SCHEMA)
