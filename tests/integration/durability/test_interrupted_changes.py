"""The platform is killed while it starts, and in the middle of administrative changes: what was answered with success
is there afterwards, and nothing half made or half deleted bars the way of a second try.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pulsar
import pytest

from magnetar.testing.processes import MagnetarProcess, free_port

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
DEATHS_AT_START = 6
DEATHS_DURING_CHANGES = 6


def exchange(url: str, topic: str, payload: bytes) -> None:
    client = pulsar.Client(url, logger=QUIET)
    try:
        client.create_producer(topic).send(payload)
    finally:
        client.close()


def stored(url: str, topic: str) -> list[bytes]:
    client = pulsar.Client(url, logger=QUIET)
    try:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(timeout_millis=10_000).data())
        return found
    finally:
        client.close()


def test_a_platform_killed_again_and_again_while_it_starts_starts_in_the_end(tmp_path: Path) -> None:
    """From the very first start on, when there is no directory yet; and later with messages to bring back."""
    dice = random.Random(11)
    platform = MagnetarProcess.standalone(tmp_path)
    command = [str(Path(sys.executable).with_name("magnetar")), *platform.arguments]
    sent: list[bytes] = []
    topic = "persistent://public/default/kept"
    for life in range(3):
        for _ in range(DEATHS_AT_START):
            with platform.log.open("a") as log:
                process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)
                with process:
                    time.sleep(dice.uniform(0.1, 0.9))
                    assert process.poll() is None, platform.log_tail()
                    process.kill()
        platform.start()
        if not life:
            call(platform.web_url, "POST", "/namespaces/public/default/retention", KEEP)
        else:
            assert stored(platform.service_url, topic) == sent
        sent.append(b"life %d" % life)
        exchange(platform.service_url, topic, sent[-1])
        platform.kill()


KEEP = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}


def call(web_url: str, method: str, path: str, body: object = None) -> object:
    """The answer. Raises HTTPError; OSError where nobody answers."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"{web_url}/admin/v2{path}", data, {"Content-Type": "application/json"}, method=method
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def answer_to(web_url: str, method: str, path: str, body: object) -> int:
    try:
        call(web_url, method, path, body)
    except urllib.error.HTTPError as error:
        return error.code
    return 200


class Changes:
    """Makes and deletes namespaces and topics, one change after the other, and remembers what each answer means."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._number = 0
        self.present: set[str] = set()
        """What was made, with success."""
        self.absent: set[str] = set()
        """What was deleted, with success."""
        self.doubtful: list[tuple[str, str, object]] = []
        """Changes without an answer."""
        self.answered = 0

    def make_until_killed(self, web_url: str) -> None:
        while True:
            method, path, body = self._draw()
            try:
                call(web_url, method, path, body)
            except urllib.error.HTTPError as error:
                raise AssertionError(f"{method} {path}: {error.code} {error.read().decode()}") from error
            except OSError:
                self.doubtful.append((method, path, body))
                self.present.discard(path)
                return
            self._note(method, path)

    def _draw(self) -> tuple[str, str, object]:
        deletable = sorted(path for path in self.present if path.startswith("/persistent"))
        if deletable and self._dice.random() < 0.35:
            return "DELETE", self._dice.choice(deletable), None
        self._number += 1
        name = f"{self._number}"
        return self._dice.choice(
            [
                ("PUT", f"/namespaces/public/n{name}", {}),
                ("PUT", f"/persistent/public/default/t{name}", None),
                ("PUT", f"/persistent/public/default/p{name}/partitions", 3),
            ]
        )

    def _note(self, method: str, path: str) -> None:
        self.answered += 1
        if method == "PUT":
            self.present.add(path)
        else:
            self.present.discard(path)
            self.absent.add(path)

    def expect(self, web_url: str) -> None:
        """All that was answered is so; and what had no answer succeeds, or is found done, when tried again."""
        for method, path, body in self.doubtful:
            status = answer_to(web_url, method, path, body)
            assert status < 300 or status == (409 if method == "PUT" else 404), (
                f"{method} {path} again: {status}"
            )
            self._note(method, path)
        self.doubtful.clear()
        namespaces = call(web_url, "GET", "/namespaces/public")
        partitioned = call(web_url, "GET", "/persistent/public/default/partitioned")
        topics = call(web_url, "GET", "/persistent/public/default")
        assert isinstance(namespaces, list)
        assert isinstance(partitioned, list)
        assert isinstance(topics, list)
        there = {f"/namespaces/{each}" for each in namespaces}
        there |= {f"{_path(each)}/partitions" for each in partitioned}
        there |= {_path(each) for each in topics}
        assert self.present <= there, self.present - there
        assert not self.absent & there, self.absent & there


def _path(topic: str) -> str:
    return topic.replace("persistent://", "/persistent/")


def test_changes_answered_before_a_kill_are_there_and_the_others_can_be_tried_again(tmp_path: Path) -> None:
    dice = random.Random(7)
    changes = Changes(dice)
    platform = MagnetarProcess.standalone(tmp_path, port=free_port(), web_port=free_port()).start()
    try:
        for _ in range(DEATHS_DURING_CHANGES):
            answered = changes.answered
            killer = threading.Timer(dice.uniform(0.1, 0.6), platform.kill)
            killer.start()
            changes.make_until_killed(platform.web_url)
            killer.join()
            assert changes.answered > answered
            platform.start()
            changes.expect(platform.web_url)
        for number, path in enumerate(sorted(changes.present)):
            if path.startswith("/persistent") and number % 4 == 0:
                topic = path.replace("/persistent/", "persistent://").removesuffix("/partitions")
                exchange(platform.service_url, topic, b"alive")
        assert changes.absent
        assert platform.stop() == 0
    finally:
        if platform.alive():
            platform.kill()
