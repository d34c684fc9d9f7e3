"""`magnetar produce` and `magnetar consume`: a few messages by hand, as with pulsar-client."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, cast

import typer

from magnetar.cli.commands.session import key_values, session, topic_name
from magnetar.cli.errors import CommandError, RequestRefused

SUBSCRIPTION_TYPES = ("exclusive", "shared", "failover", "key_shared")


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    messages: Annotated[
        list[str] | None, typer.Option("--messages", "-m", help="Several times, or with --separator between.")
    ] = None,
    files: Annotated[list[Path] | None, typer.Option("--files", "-f", help="Each file is a message.")] = None,
    num_produce: Annotated[int, typer.Option("--num-produce", "-n", min=1, help="Send all so often.")] = 1,
    rate: Annotated[float, typer.Option("--rate", "-r", min=0, help="Messages a second; 0: no limit.")] = 0,
    properties: Annotated[list[str] | None, typer.Option("--properties", "-p", help="key=value")] = None,
    key: Annotated[str | None, typer.Option("--key", "-k")] = None,
    separator: Annotated[
        str, typer.Option("--separator", "-s", help='"": messages hold no separator.')
    ] = ",",
    compression: Annotated[
        str, typer.Option("--compression", help="none, lz4, zlib, zstd, snappy.")
    ] = "none",
    disable_batching: Annotated[bool, typer.Option("--disable-batching", "-db")] = False,
) -> None:
    """Publish messages."""
    payloads = list(_payloads(messages or [], files or [], separator))
    if not payloads:
        raise CommandError("what is to be sent? Say --messages or --files")
    attributes = key_values(properties, "--properties")
    topic = str(topic_name(topic))
    from magnetar.client.blocking import BlockingClient
    from magnetar.client.errors import ClientError

    try:
        with BlockingClient(session().service_url) as client:
            producer = client.create_producer(
                topic,
                batching=not disable_batching,
                compression=cast("Literal['none', 'lz4', 'zlib', 'zstd', 'snappy']", compression.lower()),
            )
            sent = []
            began = time.monotonic()
            for number, payload in enumerate(payloads * num_produce):
                if rate:
                    time.sleep(max(0.0, began + number / rate - time.monotonic()))
                sent.append(producer.send_nowait(payload, key=key, properties=attributes))
            for receipt in sent:
                receipt.result()
            producer.close()
    except (ClientError, OSError, ValueError) as error:
        raise RequestRefused(_not_done("produce to", topic, error)) from error
    print(f"{len(sent)} messages successfully produced")


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    subscription_name: Annotated[str, typer.Option("--subscription-name", "-s")],
    num_messages: Annotated[int, typer.Option("--num-messages", "-n", min=0, help="0: for ever.")] = 1,
    subscription_type: Annotated[
        str, typer.Option("--subscription-type", "-t", help="Exclusive, Shared, Failover or Key_Shared.")
    ] = "Exclusive",
    subscription_position: Annotated[
        str, typer.Option("--subscription-position", "-p", help="Latest or Earliest.")
    ] = "Latest",
    regex: Annotated[bool, typer.Option("--regex", help="TOPIC is a pattern within its namespace.")] = False,
    rate: Annotated[float, typer.Option("--rate", "-r", min=0, help="Messages a second; 0: no limit.")] = 0,
    queue_size: Annotated[
        int, typer.Option("--queue-size", "-q", min=0, help="Messages received ahead; 0: 1000.")
    ] = 0,
    subscription_mode: Annotated[
        str, typer.Option("--subscription-mode", "-m", help="Durable or NonDurable.")
    ] = "Durable",
    hex_: Annotated[bool, typer.Option("--hex", help="Show contents as hexadecimal digits.")] = False,
    hide_content: Annotated[bool, typer.Option("--hide-content")] = False,
    timeout_s: Annotated[
        float | None, typer.Option("--timeout", help="Give up after so many seconds.")
    ] = None,
) -> None:
    """Receive messages, show and acknowledge them."""
    kind, position = subscription_type.lower(), subscription_position.lower()
    if kind not in SUBSCRIPTION_TYPES:
        raise CommandError(f"--subscription-type: expected one of {', '.join(SUBSCRIPTION_TYPES)}")
    if position not in ("latest", "earliest"):
        raise CommandError("--subscription-position: expected Latest or Earliest")
    if subscription_mode.lower() not in ("durable", "nondurable"):
        raise CommandError("--subscription-mode: expected Durable or NonDurable")
    from magnetar.client.blocking import BlockingClient
    from magnetar.client.errors import ClientError

    try:
        with BlockingClient(session().service_url) as client:
            topics: str | list[str] = str(topic_name(topic))
            if regex:
                topics = _matching(client, topic)
            consumer = client.subscribe(
                topics,
                subscription_name,
                type=cast("Literal['exclusive', 'shared', 'failover', 'key_shared']", kind),
                initial=cast("Literal['latest', 'earliest']", position),
                receiver_queue_size=queue_size or 1000,
                durable=subscription_mode.lower() == "durable",
            )
            received = 0
            began = time.monotonic()
            while not num_messages or received < num_messages:
                if rate:
                    time.sleep(max(0.0, began + received / rate - time.monotonic()))
                message = consumer.receive(timeout_s)
                if message is None:
                    break
                received += 1
                if not hide_content:
                    _show(message.key, message.properties, message.data, hex_)
                consumer.acknowledge(message)
            consumer.close()
    except KeyboardInterrupt:
        return
    except (ClientError, OSError, ValueError) as error:
        raise RequestRefused(_not_done("consume from", topic, error)) from error
    print(f"{received} messages successfully consumed")
    if received < num_messages:
        raise CommandError(f"only {received} of {num_messages} messages came")


def _payloads(messages: list[str], files: list[Path], separator: str) -> Iterator[bytes]:
    for text in messages:
        parts = text.split(separator) if separator else [text]
        yield from (part.encode() for part in parts)
    for path in files:
        try:
            yield path.read_bytes()
        except OSError as error:
            raise CommandError(f"--files: {path}: {error.strerror or error}") from error


def _matching(client: object, pattern: str) -> list[str]:
    from magnetar.client.blocking import BlockingClient

    assert isinstance(client, BlockingClient)
    head, _, local = pattern.rpartition("/")
    namespace = head.partition("://")[2] or head or "public/default"
    try:
        wanted = re.compile(local)
    except re.error as error:
        raise CommandError(f"{pattern!r} is not a pattern: {error}") from error
    found = [name for name in client.topics(namespace) if wanted.fullmatch(name.rpartition("/")[2])]
    if not found:
        raise CommandError(f"no topic of {namespace} matches {local!r}")
    return found


def _show(key: str | None, properties: object, data: bytes, as_hex: bool) -> None:
    content = data.hex(" ") if as_hex else data.decode("utf-8", "backslashreplace")
    pairs = ", ".join(f"{name}={value}" for name, value in dict(cast("dict[str, str]", properties)).items())
    print("----- got message -----")
    print(f"key:[{'null' if key is None else key}], properties:[{pairs}], content:{content}", flush=True)


def _not_done(verb: str, topic: str, error: Exception) -> str:
    return f"cannot {verb} {topic}: {error or type(error).__name__}"
