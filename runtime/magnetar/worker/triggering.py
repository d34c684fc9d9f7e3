"""Send one message through a function and wait for what comes of it.

The result is found by two properties that a function's host puts on every output: the input's topic and message id.
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from magnetar.worker.component import Component
from magnetar.worker.configs import config_of, input_topics
from magnetar.worker.errors import BadRequest, TriggerTimeout

if TYPE_CHECKING:
    from magnetar.client import Client
    from magnetar.protocol.ids import MessageId

INPUT_TOPIC = "__pfn_input_topic__"
INPUT_MESSAGE_ID = "__pfn_input_msg_id__"
RESULT_TIMEOUT_S = 10.0
PARTITION = re.compile(r"-partition-\d+$")
STANDARD_ALPHABET = str.maketrans("-_", "+/")
"""Hosts of Apache's write base64 for URLs, its worker reads the standard one; either is understood here."""


class Trigger:
    """Asks functions over a client that is connected when it is first needed."""

    def __init__(self, service_url: str, worker_id: str, *, client: Client | None = None) -> None:
        self._service_url = service_url
        self._worker_id = worker_id
        self._client = client

    async def __call__(self, component: Component, data: bytes, topic: str | None) -> bytes | None:
        """The function's result for `data`; None for a function without output.

        Raises BadRequest: `topic` is none of its inputs. TriggerTimeout: no result came.
        """
        from magnetar.protocol.ids import MessageId

        config = config_of(component)
        target = _target(input_topics(config), topic)
        output = getattr(config, "output", None)
        client = await self.client()
        producer = await client.create_producer(
            target, producer_name=f"{self._worker_id}-trigger-{component.name}", batching=False
        )
        try:
            if output is None:
                await producer.send(data)
                return None
            reader = await client.create_reader(output, MessageId.LATEST)
            try:
                message_id = await producer.send(data)
                async with asyncio.timeout(RESULT_TIMEOUT_S):
                    return await _result(reader, target, message_id)
            except TimeoutError as error:
                raise TriggerTimeout(
                    f"{component.name} published no result for this message within {RESULT_TIMEOUT_S:g} s"
                ) from error
            finally:
                await reader.close()
        finally:
            await producer.close()

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def client(self) -> Client:
        """Connected when it is first needed."""
        if self._client is None:
            module: Any = await asyncio.to_thread(__import__, "magnetar.client", fromlist=["Client"])
            self._client = module.Client(self._service_url)
        return self._client


def _target(inputs: list[str], topic: str | None) -> str:
    from magnetar.functions.config.topics import full_name
    from magnetar.functions.errors import ConfigError

    if topic is None:
        if len(inputs) != 1:
            raise BadRequest(
                f"name the `topic` to trigger with: the function reads {', '.join(inputs) or 'a pattern'}"
            )
        return inputs[0]
    try:
        wanted = full_name("topic", topic)
    except ConfigError as error:
        raise BadRequest(str(error)) from error
    if wanted not in inputs:
        raise BadRequest(f"topic {topic!r} is no input of the function: it reads {', '.join(inputs)}")
    return wanted


async def _result(reader: Any, topic: str, message_id: MessageId) -> bytes:
    while True:
        message = await reader.read()
        if _origin(message.properties) == (topic, message_id.ledger_id, message_id.entry_id):
            return bytes(message.data)


def _origin(properties: Mapping[str, str]) -> tuple[str, int, int] | None:
    """Topic (that of a partition without its number), ledger and entry of the input that a result is for."""
    from magnetar.protocol.errors import ProtocolError
    from magnetar.protocol.ids import MessageId

    encoded = properties.get(INPUT_MESSAGE_ID, "").translate(STANDARD_ALPHABET)
    try:
        found = MessageId.from_bytes(base64.b64decode(encoded + "=" * (-len(encoded) % 4)))
    except (ValueError, ProtocolError):
        return None
    return PARTITION.sub("", properties.get(INPUT_TOPIC, "")), found.ledger_id, found.entry_id
