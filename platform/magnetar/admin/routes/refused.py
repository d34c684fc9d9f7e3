"""What clients may ask for and this platform does not do: refused clearly, and where to read more."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from magnetar.admin.errors import Refused
from magnetar.admin.routes.namespaces import ONE as NAMESPACE
from magnetar.admin.routes.targets import ONE, require_existing
from magnetar.admin.routing import Guards, Route
from magnetar.security.authorizer import Action

if TYPE_CHECKING:
    from magnetar.admin.call import Call

_ADMINISTER: Final = (Guards.TOPIC, Action.ADMINISTER_TOPIC)
_LOOK: Final = (Guards.TOPIC, Action.READ_STATS)


async def never_run(call: Call) -> dict[str, Any]:
    """How a long-running operation fares: it has never been run, because it cannot be yet."""
    await require_existing(call)
    return {"status": "NOT_RUN", "lastError": ""}


def _refusing(status: int, reason: str) -> Callable[[Call], Awaitable[None]]:
    async def refuse(call: Call) -> None:
        raise Refused(status, reason)

    refuse.__doc__ = f"Refused: {reason}"
    return refuse


_NOT_YET: Final = (
    ("PUT", f"{ONE}/offload", "ledgers are not offloaded by this version", *_ADMINISTER),
    (
        "GET",
        f"{NAMESPACE}/scanOffloadedLedgers",
        "ledgers are not offloaded by this version",
        Guards.NAMESPACE,
        Action.READ_POLICY,
    ),
)

_WITHOUT: Final = (
    ("/admin/v3/packages", "the packages service is not enabled: upload packages with the function itself"),
    ("/admin/v2/scalable", "scalable topics are not served"),
)
"""Families of paths, each answered 503 whatever follows, up to eight segments deep."""


def _routes() -> Iterator[Route]:
    for method, path, reason, guards, action in _NOT_YET:
        yield Route(method, path, _refusing(501, f"Not implemented: {reason}"), guards, action)
    yield Route("GET", f"{ONE}/offload", never_run, *_LOOK)
    for prefix, reason in _WITHOUT:
        refuse = _refusing(503, reason)
        for depth in range(8):
            path = prefix + "".join(f"/{{part{number}}}" for number in range(depth))
            for method in ("GET", "PUT", "POST", "DELETE"):
                yield Route(method, path, refuse, documented=not depth)


ROUTES: Final = tuple(_routes())
