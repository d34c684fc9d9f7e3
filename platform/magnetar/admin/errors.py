"""AdminError: what a route refuses by itself, and the one table of every refusal's HTTP status.

Refused(status, reason)    said by a route
Elsewhere(url)             another broker serves it: go there
"""

from __future__ import annotations

from magnetar.environment.logs import get_logger

log = get_logger("magnetar.admin")


class AdminError(Exception):
    """The root of this room's errors."""


class Refused(AdminError):
    """An answer other than what was asked for."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Elsewhere(AdminError):
    """Another broker has it."""

    def __init__(self, web_url: str) -> None:
        super().__init__(f"served by {web_url}")
        self.web_url = web_url


def refusal(error: Exception) -> tuple[int, str]:
    """The status and the reason to answer with.

    Each room's errors know their own status; names are judged here, in Pulsar's words, which clients compare.
    """
    from magnetar.broker.errors import BrokerError, as_broker_error
    from magnetar.managed_ledger.errors import StorageUnavailable
    from magnetar.metadata.errors import InvalidPath, StoreUnavailable, ValueTooLarge
    from magnetar.naming import InvalidName, InvalidNamespaceName, InvalidTopicName
    from magnetar.policies.errors import PoliciesError
    from magnetar.security.errors import SecurityError, Unauthenticated

    match error:
        case Refused():
            return error.status, str(error)
        case PoliciesError():
            return error.http_status, str(error)
        case BrokerError():
            return error.http_status, str(error)
        case InvalidTopicName():
            return 412, f"Topic name is not valid: {error}"
        case InvalidNamespaceName():
            return 412, f"Namespace name is not valid: {error}"
        case InvalidName():
            return 412, f"{error.kind.capitalize()} name is not valid: {error}"
        case Unauthenticated():
            return 401, str(error)
        case SecurityError():
            return 403, str(error)
        case InvalidPath():
            return 412, f"name cannot be stored: {error}"
        case ValueTooLarge():
            return 413, str(error)
        case StorageUnavailable():
            return 503, str(error)
        case StoreUnavailable():
            return 503, f"the metadata store does not answer; the request may have taken effect: {error}"
        case _:
            told = as_broker_error(error)
            return told.http_status, str(told)
