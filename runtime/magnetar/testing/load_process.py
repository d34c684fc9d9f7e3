"""The process behind `load.py`: producers or consumers of the official client, until standard input ends."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import deque
from typing import Any

import pulsar

_RETRY_S = 0.5
_RECEIVE_MS = 1000
_WINDOW = 500


class _Log:
    """One line per event, whole lines only, from any thread."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, line: str) -> None:
        os.write(self._file, f"{line.replace(chr(10), ' ')}\n".encode())


class _Producer:
    """Sends numbers in order, each again until it is receipted, at a steady pace.

    Sequence ids are the numbers, so that whatever is sent twice is known for the same where deduplication is on.
    """

    def __init__(self, client: Any, part: dict[str, Any], stop: threading.Event) -> None:
        self._client = client
        self._part = part
        self._stop = stop
        self._log = _Log(part["log"])
        self._waiting: deque[int] = deque()
        self._changed = threading.Condition()
        self._broken = False
        self._generation = 0
        """Of the producer in use: what befalls an earlier one's messages says nothing of this one."""

    def run(self) -> None:
        part = self._part
        producer = None
        number = 0
        due = time.monotonic()
        while True:
            if producer is None:
                producer = self._open()
                with self._changed:
                    # What has no receipt is sent again, in order: whether it was stored is not known.
                    again = sorted(self._waiting)
                    self._waiting.clear()
                    self._broken = False
                    self._generation += 1
                for each in again:
                    self._send(producer, each)
            with self._changed:
                self._changed.wait_for(lambda: self._broken or len(self._waiting) < _WINDOW, timeout=1)
                full, broken = len(self._waiting) >= _WINDOW, self._broken
            if broken:
                self._close(producer)
                producer = None
                continue
            if self._stop.is_set():
                with self._changed:
                    if (
                        self._changed.wait_for(lambda: self._broken or not self._waiting, timeout=1)
                        and not self._broken
                    ):
                        break
                continue
            if full:
                continue
            self._log.write(f"sent {number}")
            self._send(producer, number)
            number += 1
            due = max(due + 1 / part["per_second"], time.monotonic() - 1)
            time.sleep(max(0.0, due - time.monotonic()))
        self._close(producer)

    def _open(self) -> Any:
        part = self._part
        while True:
            try:
                return self._client.create_producer(
                    part["topic"],
                    producer_name=part["name"],
                    batching_enabled=part["batching"],
                    batching_max_publish_delay_ms=5,
                    batching_max_messages=20,
                    max_pending_messages=2 * _WINDOW,
                    send_timeout_millis=0,
                )
            except pulsar.PulsarException as error:
                self._log.write(f"trouble create {error}")
                time.sleep(_RETRY_S)

    def _send(self, producer: Any, number: int) -> None:
        part = self._part
        payload = f"{part['name']}:{number}".encode()
        if part["bytes"]:
            payload = (payload + b" ").ljust(part["bytes"], b"x")
        key = f"key-{number % part['keys']}" if part["keys"] else None
        with self._changed:
            self._waiting.append(number)
            generation = self._generation

        def confirm(result: Any, _id: Any) -> None:
            with self._changed:
                if result == pulsar.Result.Ok:
                    self._log.write(f"receipted {number}")
                    if number in self._waiting:
                        self._waiting.remove(number)
                else:
                    self._log.write(f"trouble send {number} {result}")
                    self._broken = self._broken or generation == self._generation
                self._changed.notify_all()

        try:
            producer.send_async(payload, confirm, partition_key=key, sequence_id=number)
        except pulsar.PulsarException as error:
            self._log.write(f"trouble send {number} {error}")
            with self._changed:
                self._broken = True

    def _close(self, producer: Any) -> None:
        try:
            producer.close()
        except pulsar.PulsarException as error:
            self._log.write(f"trouble close {error}")


class _Consumer:
    """Receives and acknowledges one by one."""

    def __init__(self, client: Any, part: dict[str, Any], stop: threading.Event) -> None:
        self._client = client
        self._part = part
        self._stop = stop
        self._log = _Log(part["log"])

    def run(self) -> None:
        while not self._stop.is_set():
            try:
                consumer = self._client.subscribe(
                    self._part["topic"],
                    self._part["subscription"],
                    consumer_type=getattr(pulsar.ConsumerType, self._part["kind"]),
                    consumer_name=self._part["name"],
                    initial_position=pulsar.InitialPosition.Earliest,
                    receiver_queue_size=200,
                )
            except pulsar.PulsarException as error:
                self._log.write(f"trouble subscribe {error}")
                time.sleep(_RETRY_S)
                continue
            self._consume(consumer)

    def _consume(self, consumer: Any) -> None:
        while not self._stop.is_set():
            try:
                message = consumer.receive(timeout_millis=_RECEIVE_MS)
            except pulsar.Timeout:
                continue
            except pulsar.PulsarException as error:
                self._log.write(f"trouble receive {error}")
                break
            payload = message.data().decode().partition(" ")[0]
            self._log.write(f"received {payload}")
            try:
                consumer.acknowledge(message)
            except pulsar.PulsarException as error:
                self._log.write(f"trouble acknowledge {error}")
                continue
            self._log.write(f"acknowledged {payload}")
        try:
            consumer.close()
        except pulsar.PulsarException as error:
            self._log.write(f"trouble close {error}")


def main() -> None:
    plan = json.loads(sys.argv[1])
    client = pulsar.Client(
        plan["url"],
        operation_timeout_seconds=30,
        connection_timeout_ms=5000,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Warn),
    )
    stop = threading.Event()
    kind = _Producer if plan["kind"] == "producer" else _Consumer
    threads = [threading.Thread(target=kind(client, part, stop).run) for part in plan["parts"]]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    stop.set()
    for thread in threads:
        thread.join()
    client.close()


if __name__ == "__main__":
    main()
