"""FunctionsError: all that can be wrong with a function before and while it runs.

ConfigError(field, reason)      a config cannot be used; the field has Pulsar's JSON name
PackageError                    a package does not hold what its config says it holds
DeployRefused(status, reason)   the platform answered a deployment with an error
SerDeFailed                     a value cannot be turned into bytes, or bytes into a value
PublishRefused                  `context.publish` where it could not be exactly once
EntryMalformed                  a batch whose bytes disagree with their own lengths
"""

from __future__ import annotations


class FunctionsError(Exception):
    """Root of this room's errors."""


class ConfigError(FunctionsError):
    """A config cannot be used. `field` names what is wrong as the JSON spells it, nested ones with dots."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class PackageError(FunctionsError):
    """A package does not hold what its config says it holds."""


class DeployRefused(FunctionsError):
    """The platform answered a deployment with an error."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"the platform answered {status}: {reason}")
        self.status = status
        self.reason = reason


class SerDeFailed(FunctionsError):
    """A value cannot be turned into bytes, or bytes into a value."""


class PublishRefused(FunctionsError):
    """`context.publish` in a function whose results are to be effectively once."""


class StateUnavailable(FunctionsError):
    """State was asked for. Refused, because Apache's way of dropping it silently helps nobody."""


class EntryMalformed(FunctionsError):
    """A batch whose bytes disagree with their own lengths."""
