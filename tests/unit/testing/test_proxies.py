"""A proxied link is cut one way, trickles, is late, or breaks, as told, and for whom it was told only."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from magnetar.testing.processes import free_port
from magnetar.testing.proxies import ANYBODY, Link, Proxies, Weather

LONG_S = 20.0
ECHO_LATE_S = 0.3


@pytest.fixture
def echo() -> Iterator[tuple[str, int]]:
    """A server that sends back what it gets."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65536):
                    connection.sendall(data)
            except OSError:
                return  # The test has reset it.

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield listener.getsockname()
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


@pytest.fixture
def proxies() -> Iterator[Proxies]:
    with Proxies(lambda: [("me", os.getpid())]) as proxies:
        yield proxies


def through(proxies: Proxies, target: tuple[str, int]) -> socket.socket:
    at = ("127.0.0.1", free_port())
    proxies.listen("echo", at, target)
    return socket.create_connection(at, timeout=LONG_S)


def exchange(connection: socket.socket, data: bytes) -> bytes:
    connection.sendall(data)
    found = b""
    while len(found) < len(data):
        part = connection.recv(65536)
        if not part:
            return found
        found += part
    return found


def silent(connection: socket.socket) -> bool:
    connection.settimeout(0.2)
    try:
        return not connection.recv(1)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(LONG_S)


def ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(10) == b""
    except ConnectionError:
        return True


def test_what_is_sent_comes_back(proxies: Proxies, echo: tuple[str, int]) -> None:
    with through(proxies, echo) as connection:
        assert exchange(connection, b"x" * 1_000_000) == b"x" * 1_000_000


@pytest.mark.parametrize("link", [Link("me", "echo"), Link("echo", "me"), Link("me", ANYBODY)])
def test_a_cut_link_keeps_what_is_on_its_way(proxies: Proxies, echo: tuple[str, int], link: Link) -> None:
    with through(proxies, echo) as connection:
        assert exchange(connection, b"before") == b"before"
        proxies.spoil(link, Weather(cut=True))
        connection.sendall(b"held")
        assert silent(connection)
        proxies.clear(link)
        assert connection.recv(100) == b"held"


def test_a_cut_of_others_is_not_ours(proxies: Proxies, echo: tuple[str, int]) -> None:
    with through(proxies, echo) as connection:
        proxies.spoil(Link("somebody", "echo"), Weather(cut=True))
        assert exchange(connection, b"x") == b"x"


def test_another_process_is_known_by_its_name(echo: tuple[str, int]) -> None:
    """A child connects; its link is cut, and ours to the same server is not."""
    child = (
        "import socket,sys;c=socket.create_connection(('127.0.0.1',int(sys.argv[1])));sys.stdin.readline();"
        "c.sendall(b'x');sys.stdout.write('%s\\n'%c.recv(1));sys.stdout.flush()"
    )
    pids: dict[str, int] = {}
    with Proxies(lambda: list(pids.items())) as proxies:
        proxies.spoil(Link("child", "echo"), Weather(cut=True))
        port = free_port()
        with subprocess.Popen(
            [sys.executable, "-c", f"input()\n{child}", str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            pids["child"] = process.pid
            proxies.listen("echo", ("127.0.0.1", port), echo)
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("connect\nsend\n")
            process.stdin.flush()
            with socket.create_connection(("127.0.0.1", port), timeout=LONG_S) as connection:
                assert exchange(connection, b"x") == b"x"
            assert process.poll() is None
            proxies.clear()
            assert process.stdout.readline() == "b'x'\n"


def test_a_delayed_link_is_late_and_not_narrow(proxies: Proxies, echo: tuple[str, int]) -> None:
    with through(proxies, echo) as connection:
        proxies.spoil(Link("echo", "me"), Weather(delay_s=ECHO_LATE_S))
        began = time.monotonic()
        for _ in range(5):
            connection.sendall(b"x")
            time.sleep(0.01)
        found = b""
        while len(found) < 5:
            found += connection.recv(10)
        assert ECHO_LATE_S <= time.monotonic() - began < 4 * ECHO_LATE_S


def test_a_trickle(proxies: Proxies, echo: tuple[str, int]) -> None:
    with through(proxies, echo) as connection:
        proxies.spoil(Link("me", "echo"), Weather(bytes_per_s=10_000))
        began = time.monotonic()
        assert exchange(connection, b"x" * 5_000) == b"x" * 5_000
        assert time.monotonic() - began >= 0.4


def test_a_reset_breaks_what_stands_even_if_cut(proxies: Proxies, echo: tuple[str, int]) -> None:
    with through(proxies, echo) as connection:
        assert exchange(connection, b"x") == b"x"
        proxies.spoil(Link(ANYBODY, "echo"), Weather(cut=True))
        connection.sendall(b"lost")
        proxies.reset("me", "echo")
        assert ended(connection)


def test_where_nobody_listens_the_connection_ends(proxies: Proxies) -> None:
    with through(proxies, ("127.0.0.1", free_port())) as connection:
        assert ended(connection)
