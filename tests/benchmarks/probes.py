"""What the machine itself can do, measured in the same run: every figure is read beside these."""

from __future__ import annotations

import os
import socket
import statistics
import threading
import time
from dataclasses import dataclass
from pathlib import Path

BLOCK = 4096


@dataclass(frozen=True, slots=True)
class Latency:
    """Microseconds."""

    p50: float
    p99: float

    @classmethod
    def of(cls, seconds: list[float]) -> Latency:
        ordered = sorted(seconds)
        return cls(statistics.median(ordered) * 1e6, ordered[int(len(ordered) * 0.99)] * 1e6)

    def __str__(self) -> str:
        return f"{self.p50:.0f} / {self.p99:.0f} µs"


def fsync(directory: Path, rounds: int = 1500) -> Latency:
    """fdatasync of 4 KiB into a preallocated file: the floor of any durable receipt."""
    path = directory / "probe"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        block = os.urandom(BLOCK)
        for position in range(rounds):
            os.pwrite(descriptor, block, position * BLOCK)
        os.fsync(descriptor)
        times = []
        for position in range(rounds):
            began = time.perf_counter()
            os.pwrite(descriptor, block, position * BLOCK)
            os.fdatasync(descriptor)
            times.append(time.perf_counter() - began)
        return Latency.of(times)
    finally:
        os.close(descriptor)
        path.unlink()


def loopback(rounds: int = 3000) -> Latency:
    """A round trip of 100 bytes between two threads over a loopback socket."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def echo() -> None:
            connection, _ = server.accept()
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while data := connection.recv(4096):
                    connection.sendall(data)

        thread = threading.Thread(target=echo)
        thread.start()
        times = []
        with socket.create_connection(server.getsockname()) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            payload = b"x" * 100
            for _ in range(rounds):
                began = time.perf_counter()
                client.sendall(payload)
                client.recv(4096)
                times.append(time.perf_counter() - began)
        thread.join()
    return Latency.of(times)


def synced_rate(directory: Path, blocks: int = 128) -> float:
    """MB/s of 1 MiB writes, each with its fdatasync, into a preallocated file: the ceiling of durable publishing."""
    path = directory / "probe"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        block = os.urandom(1 << 20)
        for position in range(blocks):
            os.pwrite(descriptor, block, position << 20)
        os.fsync(descriptor)
        began = time.perf_counter()
        for position in range(blocks):
            os.pwrite(descriptor, block, position << 20)
            os.fdatasync(descriptor)
        return blocks * len(block) / (time.perf_counter() - began) / 1e6
    finally:
        os.close(descriptor)
        path.unlink()


def loopback_rate(blocks: int = 2000) -> float:
    """MB/s between two threads over a loopback socket, 256 KiB at a time: the ceiling of consuming."""
    block = bytes(256 << 10)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def send() -> None:
            connection, _ = server.accept()
            with connection:
                for _ in range(blocks):
                    connection.sendall(block)

        thread = threading.Thread(target=send)
        thread.start()
        with socket.create_connection(server.getsockname()) as client:
            room = bytearray(len(block))
            began = time.perf_counter()
            while client.recv_into(room):
                pass
            elapsed = time.perf_counter() - began
        thread.join()
    return blocks * len(block) / elapsed / 1e6


def pressure() -> float:
    """Per cent of the last ten seconds in which some task waited for a processor; -1 where the kernel does not say."""
    try:
        text = Path("/proc/pressure/cpu").read_text()
    except OSError:
        return -1.0
    return float(text.split("avg10=", 1)[1].split()[0])
