"""CommandError: why a command ends with status 1 and one line on standard error.

SettingsError     a setting that is unknown or of the wrong type; names where it stands
CannotServe       a role that cannot start: port or directory in use, a newer format, no metadata store
RequestRefused    the platform said no; the line is its reason
"""

from __future__ import annotations


class CommandError(Exception):
    """Root of this room's errors. The text is for the user: it says what to do."""


class SettingsError(CommandError):
    """A setting cannot be used."""


class CannotServe(CommandError):
    """A role cannot start."""


class RequestRefused(CommandError):
    """The platform refused, or could not be reached."""

    def __init__(self, reason: str, status: int = 0) -> None:
        super().__init__(reason)
        self.status = status
