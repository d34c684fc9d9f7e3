"""SecurityError: why a request is turned away.

Unauthenticated    who are you? Answer AuthenticationError, HTTP 401
Forbidden          known, and not allowed. Answer AuthorizationError, HTTP 403
"""

from __future__ import annotations


class SecurityError(Exception):
    """Root of this room's errors."""


class Unauthenticated(SecurityError):
    """The credentials are missing, wrong or too old."""


class Forbidden(SecurityError):
    """The role is not allowed to do this."""

    def __init__(self, role: str | None, action: str, resource: str) -> None:
        who = f"role {role!r}" if role is not None else "an anonymous client"
        super().__init__(f"{who} is not allowed to {action.replace('_', ' ')} on {resource}")
        self.role = role
        self.action = action
        self.resource = resource
