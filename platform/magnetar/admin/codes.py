"""The machine-readable half of a refusal: `code` beside Pulsar's `reason`, the same from version to version.

What a room's error says best by its name is told under that name (`topic_not_found`, `subscription_busy`);
everything else by what its status means. All that can be told stand in docs/admin.md, which a test compares.
"""

from __future__ import annotations

import re
from typing import Final

BY_STATUS: Final[dict[int, str]] = {
    307: "elsewhere",
    400: "bad_request",
    401: "unauthenticated",
    403: "forbidden",
    404: "not_found",
    405: "not_allowed",
    406: "limit_exceeded",
    408: "too_slow",
    409: "conflict",
    412: "precondition_failed",
    413: "too_large",
    422: "unprocessable",
    429: "too_many_requests",
    500: "internal",
    501: "not_implemented",
    503: "unavailable",
}
"""What a status means where nothing more exact is known."""

_CAPITAL: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")


def of_status(status: int) -> str:
    """The code of a refusal of which only the status is known."""
    return BY_STATUS.get(status) or ("internal" if status >= 500 else "bad_request")


def of_name(error: Exception) -> str:
    """The code that an error's own class gives: `TopicNotFound` is `topic_not_found`."""
    return _CAPITAL.sub("_", type(error).__name__).lower()


def broker_codes() -> list[str]:
    """The codes of everything a broker refuses, sorted."""
    from magnetar.broker.errors import BrokerError

    def below(kind: type[BrokerError]) -> list[type[BrokerError]]:
        return [each for child in kind.__subclasses__() for each in (child, *below(child))]

    return sorted({_CAPITAL.sub("_", kind.__name__).lower() for kind in below(BrokerError)})
