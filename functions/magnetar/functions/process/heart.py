"""Tells the host, while an entry takes long, how far it has got: what does not move is hung."""

from __future__ import annotations

import threading
from collections.abc import Sized

from magnetar.functions.process.channel import Channel, HostGone
from magnetar.functions.process.wire import beat_frame


class Heart:
    """A thread that wakes now and then and, where an entry is being worked on, tells how much of it is done.

    It costs the loop next to nothing: progress is the length of the list its results go to. What earlier entries left
    in the channel's queue goes with the beat, so that no result waits for a slow entry behind it.
    """

    def __init__(self, channel: Channel, every_s: float) -> None:
        self._channel = channel
        self._every_s = every_s
        self._work: tuple[int, Sized] | None = None
        threading.Thread(target=self._beat, name="heart", daemon=True).start()

    def begin(self, serial: int, results: Sized) -> None:
        self._work = (serial, results)

    def end(self) -> None:
        self._work = None

    def _beat(self) -> None:
        pause = threading.Event()
        while True:
            pause.wait(self._every_s)
            work = self._work
            if work is not None:
                serial, results = work
                try:
                    self._channel.send(beat_frame(serial, len(results)))
                except HostGone:
                    return  # The main thread will find out and end the process.
