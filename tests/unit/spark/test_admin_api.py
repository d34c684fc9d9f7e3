"""Whichever broker of a cluster is asked, the one that serves the topic is reached."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from magnetar.spark.admin_api import AdminApi, AdminRefused

TOPIC = "persistent://public/default/t"


class Broker(BaseHTTPRequestHandler):
    """Sends `/first/...` on to `/second/...`, and `/round/...` to itself."""

    asked: list[tuple[str, str, bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.asked.append((self.command, self.path, body))
        if self.path.startswith("/first/"):
            self.answer(307, self.path.replace("/first/", "/second/"))
        elif self.path.startswith("/round/"):
            self.answer(307, self.path)
        else:
            self.answer(204)

    do_PUT = do_POST  # noqa: N815  # http.server's name.

    def answer(self, status: int, location: str = "") -> None:
        self.send_response(status)
        if location:
            self.send_header("Location", location)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Silent."""


@pytest.fixture
def url() -> Iterator[str]:
    Broker.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Broker)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_what_changes_something_follows_to_the_broker_that_serves_the_topic(url: str) -> None:
    AdminApi(f"{url}/first").move_subscription(TOPIC, "s", 3, 4)
    AdminApi(f"{url}/first").create_topic(TOPIC)
    assert [(method, path.split("/")[1]) for method, path, _ in Broker.asked] == [
        ("POST", "first"),
        ("POST", "second"),
        ("PUT", "first"),
        ("PUT", "second"),
    ]
    assert Broker.asked[1][2] == Broker.asked[0][2] != b""


def test_brokers_that_send_one_round_in_a_circle_are_given_up(url: str) -> None:
    with pytest.raises(AdminRefused, match="sent on"):
        AdminApi(f"{url}/round").terminate(TOPIC)
