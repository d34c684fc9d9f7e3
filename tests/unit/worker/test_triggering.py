"""A message sent through a function finds its own result among others'."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from magnetar.client import Client
from magnetar.protocol.ids import MessageId
from magnetar.worker import triggering
from magnetar.worker.component import Component, ComponentName, Kind
from magnetar.worker.errors import BadRequest, TriggerTimeout
from magnetar.worker.triggering import Trigger

SENT = MessageId(7, 9)


@dataclass
class Result:
    properties: dict[str, str]
    data: bytes


@dataclass
class FakeClient:
    """One topic in, one topic out; what comes out is given."""

    results: list[Result]
    sent: list[tuple[str, bytes]] = field(default_factory=list)
    open: int = 0

    async def create_producer(self, topic: str, **_: Any) -> Any:
        client = self

        class Producer:
            async def send(self, data: bytes) -> MessageId:
                client.sent.append((topic, data))
                return SENT

            async def close(self) -> None:
                client.open -= 1

        self.open += 1
        return Producer()

    async def create_reader(self, topic: str, start: MessageId) -> Any:
        assert start == MessageId.LATEST
        client = self

        class Reader:
            async def read(self) -> Result:
                if not client.results:
                    await asyncio.Event().wait()
                return client.results.pop(0)

            async def close(self) -> None:
                client.open -= 1

        self.open += 1
        return Reader()

    async def close(self) -> None:
        assert self.open == 0, "something was left open"


def result(
    message_id: MessageId,
    data: bytes,
    encode: Callable[[bytes], bytes] = base64.b64encode,
    topic: str = "persistent://public/default/in",
) -> Result:
    encoded = encode(message_id.to_bytes()).decode()
    return Result({"__pfn_input_topic__": topic, "__pfn_input_msg_id__": encoded}, data)


def function(**config: Any) -> Component:
    defaults = {"className": "a.A", "inputs": ["in"], "output": "out"}
    return Component(
        Kind.FUNCTION, ComponentName("public", "default", "f"), {**defaults, **config}, None, 1, 0
    )


async def triggered(results: list[Result], component: Component, topic: str | None = None) -> bytes | None:
    client = FakeClient(results)
    trigger = Trigger("pulsar://nowhere", "w", client=cast(Client, client))
    try:
        return await trigger(component, b"x", topic)
    finally:
        await trigger.close()


async def test_the_result_of_this_very_message_is_found() -> None:
    others = [
        Result({}, b"not a function's"),
        result(MessageId(7, 8), b"another message's"),
        result(SENT, b"another topic's", topic="persistent://public/default/in2"),
        Result({"__pfn_input_topic__": "in", "__pfn_input_msg_id__": "%%%"}, b"nonsense"),
    ]
    assert await triggered([*others, result(SENT, b"ours")], function()) == b"ours"


@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
async def test_either_base64_is_understood_and_partitions_are(encode: Callable[[bytes], bytes]) -> None:
    partition = "persistent://public/default/in-partition-3"
    found = await triggered(
        [result(SENT, b"ours", encode, partition)], function(inputs=["in", "in2"]), topic="in"
    )
    assert found == b"ours"


async def test_a_function_without_output_is_only_sent_to() -> None:
    assert await triggered([], function(output=None)) is None


async def test_a_result_that_does_not_come_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(triggering, "RESULT_TIMEOUT_S", 0.01)
    with pytest.raises(TriggerTimeout, match="public/default/f published no result"):
        await triggered([result(MessageId(1, 1), b"another's")], function())


async def test_the_topic_has_to_be_one_it_reads() -> None:
    with pytest.raises(BadRequest, match="is no input of the function"):
        await triggered([], function(), topic="elsewhere")
