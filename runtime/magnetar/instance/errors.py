"""InstanceError: all that can end or hinder an instance.

SpecUnusable(reason)           the spec cannot be run; exit status 78, starting again would not help
UserCodeRefused(reason)        the package does not load, or the connector does not open
UserProcessLost(reason)        the user process died or was killed because it hung; it is started again
GuaranteeUnavailable(reason)   effectively once cannot be promised here
InputRestarted(topic)          an input's indices went backwards: it was deleted and created again
"""

from __future__ import annotations


class InstanceError(Exception):
    """Root of this room's errors."""


class SpecUnusable(InstanceError):
    """The spec cannot be run as it is."""


class UserCodeRefused(InstanceError):
    """The package does not load, or the connector does not open."""

    def __init__(self, reason: str, traceback: str = "", *, permanent: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        self.traceback = traceback
        self.permanent = permanent
        """Only another package or config can help; otherwise trying again may."""


class UserProcessLost(InstanceError):
    """The user process is gone."""


class GuaranteeUnavailable(InstanceError):
    """Effectively once cannot be promised here."""


class InputRestarted(InstanceError):
    """An input's indices went backwards, so that sequence ids would."""

    def __init__(self, topic: str, index: int, mark: int) -> None:
        super().__init__(
            f"'{topic}' delivers a new message with index {index}, though results up to index {mark} exist: the topic "
            "was deleted and created again. Delete and create the function too, so that it starts a new epoch"
        )
        self.topic = topic
