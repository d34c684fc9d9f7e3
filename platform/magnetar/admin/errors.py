"""AdminError: what a route refuses by itself, and the one table of every refusal's HTTP status.

Refused(status, reason)    said by a route
Elsewhere(url)             another broker serves it: go there
"""

from __future__ import annotations

from typing import NamedTuple

from magnetar.admin import codes
from magnetar.environment.logs import get_logger

log = get_logger("magnetar.admin")


class AdminError(Exception):
    """The root of this room's errors."""


class Refused(AdminError):
    """An answer other than what was asked for."""

    def __init__(self, status: int, reason: str, code: str = "") -> None:
        super().__init__(reason)
        self.status = status
        self.code = code or codes.of_status(status)


class Elsewhere(AdminError):
    """Another broker has it."""

    def __init__(self, web_url: str) -> None:
        super().__init__(f"served by {web_url}")
        self.web_url = web_url


class Refusal(NamedTuple):
    """What a refused request is answered with."""

    status: int
    reason: str
    code: str


def refusal(error: Exception) -> Refusal:
    """The status, the reason and the code to answer with.

    Each room's errors know their own status; names are judged here, in Pulsar's words, which clients compare.
    """
    from magnetar.broker.errors import BrokerError, as_broker_error
    from magnetar.managed_ledger.errors import StorageUnavailable
    from magnetar.metadata.errors import InvalidPath, StoreUnavailable, ValueTooLarge
    from magnetar.naming import InvalidName, InvalidNamespaceName, InvalidTopicName
    from magnetar.policies.errors import PoliciesError
    from magnetar.security.errors import SecurityError, Unauthenticated

    def told(status: int, reason: str, code: str = "") -> Refusal:
        return Refusal(status, reason, code or codes.of_status(status))

    match error:
        case Refused():
            return told(error.status, str(error), error.code)
        case PoliciesError():
            return told(error.http_status, str(error))
        case BrokerError():
            return told(error.http_status, str(error), codes.of_name(error))
        case InvalidTopicName():
            return told(412, f"Topic name is not valid: {error}", "invalid_topic_name")
        case InvalidNamespaceName():
            return told(412, f"Namespace name is not valid: {error}", "invalid_namespace_name")
        case InvalidName():
            return told(412, f"{error.kind.capitalize()} name is not valid: {error}", "invalid_name")
        case Unauthenticated():
            return told(401, str(error))
        case SecurityError():
            return told(403, str(error))
        case InvalidPath():
            return told(412, f"name cannot be stored: {error}", "invalid_name")
        case ValueTooLarge():
            return told(413, str(error))
        case StorageUnavailable():
            return told(503, str(error), "storage_unavailable")
        case StoreUnavailable():
            return told(
                503,
                f"the metadata store does not answer; the request may have taken effect: {error}",
                "metadata_unavailable",
            )
        case _:
            as_told = as_broker_error(error)
            known = type(as_told) is not BrokerError
            return told(as_told.http_status, str(as_told), codes.of_name(as_told) if known else "")
