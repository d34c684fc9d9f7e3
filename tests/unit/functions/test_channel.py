"""The user process' end of the socketpair."""

from __future__ import annotations

import fcntl
import json
import resource
import socket

from magnetar.functions.process.channel import Channel
from magnetar.functions.process.wire import ToProcess, json_frame

ABOVE_SELECT = 1_024


def test_a_descriptor_that_select_cannot_take() -> None:
    """User code may hold a thousand files open before the channel's socket gets its number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4_096)), hard))
    host, ours = socket.socketpair()
    with host, ours, socket.socket(fileno=fcntl.fcntl(ours, fcntl.F_DUPFD, ABOVE_SELECT)) as high:
        assert high.fileno() >= ABOVE_SELECT
        channel = Channel(high)
        assert not channel.waiting()
        host.sendall(json_frame(ToProcess.ANSWER, {"call": 1}))
        assert channel.waiting()
        kind, body = channel.receive()
        assert (kind, json.loads(body)) == (ToProcess.ANSWER, {"call": 1})
        assert not channel.waiting()
        host.close()
        assert channel.waiting(), "the end of the host is something to receive"
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
