"""Tells the host, while an entry takes long, how far it has got: what does not move is hung."""

from __future__ import annotations

import threading
from collections.abc import Sized

from magnetar.functions.process.channel import Channel, HostGone
from magnetar.functions.process.wire import beat_frame


class Heart:
    """A thread that sleeps until an entry is begun, and then beats until it is finished.

    Progress costs the loop nothing: it is the length of the list its results go to.
    """

    def __init__(self, channel: Channel, every_s: float) -> None:
        self._channel = channel
        self._every_s = every_s
        self._busy = threading.Event()
        self._serial = -1
        self._results: Sized = ()
        threading.Thread(target=self._beat, name="heart", daemon=True).start()

    def begin(self, serial: int, results: Sized) -> None:
        self._serial = serial
        self._results = results
        self._busy.set()

    def end(self) -> None:
        self._busy.clear()

    def _beat(self) -> None:
        pause = threading.Event()
        while True:
            self._busy.wait()
            pause.wait(self._every_s)
            if self._busy.is_set():
                try:
                    self._channel.send(beat_frame(self._serial, len(self._results)))
                except HostGone:
                    return  # The main thread will find out and end the process.
