"""The client without `await`."""

from __future__ import annotations

import threading
import time

import pytest

from magnetar.client import MessageId
from magnetar.client.blocking import BlockingClient
from magnetar.client.errors import AlreadyClosed, InvalidServiceUrl
from tests.unit.client.fake_broker import FakeBroker


async def test_everything_from_another_thread(broker: FakeBroker) -> None:
    """The fake broker needs this loop, so the blocking calls are made elsewhere, as they would be."""
    import asyncio

    await asyncio.to_thread(use_it, broker.url)


def use_it(url: str) -> None:
    with BlockingClient(url, operation_timeout_s=3.0) as client:
        producer = client.create_producer("t", producer_name="p")
        assert producer.name == "p"
        first = producer.send(b"0", key="k")
        assert client.partitions("t") == [producer.topic]
        futures = [producer.send_nowait(b"%d" % number) for number in range(1, 4)]
        assert [future.result(2).entry_id >= 1 for future in futures] == [True] * 3
        assert len(producer.send_batch([b"4", b"5"])) == 2
        producer.flush()
        assert producer.last_sequence_id == 5

        consumer = client.subscribe("t", "s", type="shared")
        received: list[bytes] = []
        while len(received) < 6:
            batch = consumer.receive_batch(2)
            assert batch is not None
            received += batch.payloads
            consumer.acknowledge(batch)
        assert received == [b"%d" % number for number in range(6)]
        consumer.flush_acknowledgements()
        assert consumer.receive(0.01) is None
        assert not consumer.ended
        assert consumer.get_last_message_id().entry_id >= first.entry_id
        consumer.close()

        reader = client.create_reader("t", MessageId.EARLIEST)
        read = []
        while reader.has_message_available():
            message = reader.read(2)
            assert message is not None
            read.append(message.data)
        assert read == received
        reader.close()
        producer.close()
    client.close()
    with pytest.raises(AlreadyClosed):
        client.partitions("t")


def test_no_thread_is_left_behind() -> None:
    with pytest.raises(InvalidServiceUrl):
        BlockingClient("nonsense")
    BlockingClient("pulsar://127.0.0.1:1").close()
    assert not [thread for thread in threading.enumerate() if thread.name == "magnetar client"]


def test_who_waits_while_another_thread_closes_the_client_is_told() -> None:
    client = BlockingClient("pulsar://127.0.0.1:1", operation_timeout_s=60.0)
    begun = threading.Event()
    told: list[BaseException] = []

    def wait() -> None:
        begun.set()
        try:
            client.partitions("t")
        except BaseException as error:
            told.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    assert begun.wait(5)
    time.sleep(0.05)  # Mostly it waits for an answer by now; if not, it is told before it asks.
    client.close()
    waiting.join(10)
    assert not waiting.is_alive()
    assert [type(each) for each in told] == [AlreadyClosed]
