"""The user process: `python -P main.py CHANNEL_FD HOST_PID PORTION…`.

Started by exec, never by fork. The portions are the folders of the `magnetar` namespace it may see (the SDK's, and
the connectors' where one runs), so that the platform cannot be imported here even where it is installed.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import socket
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

EXIT_CONFIG = 78
"""EX_CONFIG: starting again would not help."""
PERMANENT_CONNECTOR_ERRORS = frozenset(("InvalidSetting", "MissingLibrary", "UnknownConnector"))
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def main(arguments: list[str]) -> int:
    """Run the job that comes over the channel until it says close, or is gone."""
    channel_fd, host_pid, *portions = arguments
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2)  # The host asks where a hung function hangs.
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The host decides when to end.
    _die_with(int(host_pid))
    _restrict_namespace(portions)
    from magnetar.functions.process.channel import Channel, HostGone
    from magnetar.functions.process.job import Job

    with socket.socket(fileno=int(channel_fd)) as sock:
        sock.set_inheritable(False)
        channel = Channel(sock)
        try:
            job = Job.from_json(json.loads(channel.receive()[1]))
            return _run(job, channel)
        except HostGone:
            return 0


def _run(job: Any, channel: Any) -> int:
    from magnetar.functions.process.channel import HostGone
    from magnetar.functions.process.log_capture import capture
    from magnetar.functions.process.wire import ToHost, json_frame

    topic_log = capture(job, channel)
    sys.path[:0] = [str(Path(__file__).parent.parent / "standin"), *job.paths]
    loop: Any = None
    try:
        loop = _load(job, channel, topic_log)
        if job.component != "function":
            loop.open()
    except HostGone:
        raise
    except (Exception, SystemExit) as error:
        reason = "".join(traceback.format_exception_only(error)).strip()
        refusal = {"reason": reason, "traceback": traceback.format_exc(), "permanent": _is_permanent(error)}
        channel.send(json_frame(ToHost.REFUSED, refusal))
        if loop is not None:
            _close(loop)
        return EXIT_CONFIG
    channel.send(json_frame(ToHost.READY, {}))
    try:
        loop.run()
    finally:
        if job.component != "function":
            _close(loop)
    return 0


def _load(job: Any, channel: Any, topic_log: Any) -> Any:
    from magnetar.functions.process.loading import load_connector, load_function

    if job.component == "function":
        from magnetar.functions.process.function_loop import FunctionLoop

        return FunctionLoop(job, load_function(job), channel, topic_log)
    if job.component == "sink":
        from magnetar.functions.process.sink_loop import SinkLoop

        return SinkLoop(job, load_connector(job), channel, topic_log)
    from magnetar.functions.process.source_loop import SourceLoop

    return SourceLoop(job, load_connector(job), channel, topic_log)


def _is_permanent(error: BaseException) -> bool:
    """Whether only another package or config can help. A constructor that could not reach a server may try again.

    Connectors' errors go by name: this room does not know theirs.
    """
    from magnetar.functions.errors import FunctionsError

    return (
        isinstance(error, (ImportError, SyntaxError, FunctionsError))
        or type(error).__name__ in PERMANENT_CONNECTOR_ERRORS
    )


def _close(loop: Any) -> None:
    """Close a connector; what it raises then is worth a line, not more."""
    try:
        loop.close()
    except Exception:
        traceback.print_exc()


def _restrict_namespace(portions: list[str]) -> None:
    namespace = ModuleType("magnetar")
    namespace.__path__ = list(portions)
    sys.modules["magnetar"] = namespace


def _die_with(host_pid: int) -> None:
    """Have the kernel end this process when its host ends, however that happens."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != host_pid:
        os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
