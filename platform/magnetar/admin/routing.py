"""Routes as rows of a table, matched against paths as they were sent.

A path is cut at its slashes before anything is decoded, so that `%2F` stays inside its segment and `..` is a
name like any other. What is written out goes before what stands in braces.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import unquote_to_bytes

from magnetar.admin.errors import Refused
from magnetar.naming import NamespaceName, TopicName
from magnetar.security.authorizer import CLUSTER, Action

if TYPE_CHECKING:
    from magnetar.admin.answers import Result
    from magnetar.admin.call import Call
    from magnetar.policies.model import PolicyModel

Handler: TypeAlias = Callable[["Call"], Awaitable["Result"]]

DOMAINS: Final = ("persistent", "non-persistent")
FORM_ENCODED: Final = frozenset({"topic", "subscription"})
"""What Java's clients write with `+` for a space. Source: Pulsar Codec."""


class Guards(enum.Enum):
    """What a route's action is asked permission for."""

    NOTHING = "nothing"
    PLATFORM = "platform"
    TENANT = "tenant"
    NAMESPACE = "namespace"
    TOPIC = "topic"


@dataclass(frozen=True, slots=True)
class Route:
    """One row: `GET /admin/v2/{domain}/{tenant}/{namespace}/{topic}/stats` is answered by `handler`."""

    method: str
    path: str
    handler: Handler
    guards: Guards = Guards.PLATFORM
    action: Action = Action.ADMINISTER_CLUSTER
    body: type[PolicyModel] | None = None
    """What the documentation says of the body."""
    query: tuple[str, ...] = ()
    """What the documentation says of the query."""
    documented: bool = True

    def resource(self, parameters: Mapping[str, str]) -> str:
        """The text that names what is guarded. Raises NamingError."""
        match self.guards:
            case Guards.TENANT:
                return parameters["tenant"]
            case Guards.NAMESPACE:
                return str(NamespaceName(parameters["tenant"], parameters["namespace"]))
            case Guards.TOPIC:
                namespace = f"{parameters['tenant']}/{parameters['namespace']}"
                domain = parameters.get("domain", "persistent")
                return str(TopicName.parse(f"{domain}://{namespace}/{parameters['topic']}"))
            case Guards.PLATFORM | Guards.NOTHING:
                return CLUSTER


@dataclass(slots=True)
class _Node:
    written: dict[str, _Node] = field(default_factory=dict)
    any: _Node | None = None
    routes: dict[str, tuple[Route, tuple[tuple[str, int], ...], str]] = field(default_factory=dict)
    """By method: the route, where its parameters stand, and its domain."""


@dataclass(frozen=True, slots=True)
class Match:
    """The route of a request, and its parameters, decoded."""

    route: Route
    parameters: dict[str, str]


class Table:
    """All routes. Building it takes microseconds a row."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Node()
        self.routes: list[Route] = []
        for route in routes:
            self.add(route)

    def add(self, route: Route) -> None:
        """Take a row. `{domain}` stands for each of the two."""
        self.routes.append(route)
        domains = DOMAINS if "{domain}" in route.path else ("",)
        for domain in domains:
            node = self._root
            places = []
            segments = route.path.strip("/").split("/")
            for place, segment in enumerate(segments):
                if segment == "{domain}":
                    segment = domain
                if segment.startswith("{"):
                    places.append((segment[1:-1], place))
                    if node.any is None:
                        node.any = _Node()
                    node = node.any
                else:
                    node = node.written.setdefault(segment, _Node())
            if route.method in node.routes:
                raise ValueError(f"two routes for {route.method} {route.path}")
            node.routes[route.method] = (route, tuple(places), domain)

    def match(self, method: str, raw_path: str) -> Match | None:
        """The route of a request; None if nothing stands at its path.

        Raises:
            Refused: there is no such method here, or a segment cannot be decoded.
        """
        segments = raw_path.removeprefix("/").split("/")
        allowed: set[str] = set()
        found = self._find(self._root, segments, 0, method, allowed)
        if found is None and len(segments) > 1 and not segments[-1]:
            found = self._find(self._root, segments[:-1], 0, method, allowed)
        if found is None:
            if allowed:
                raise Refused(405, f"{method} is not possible here, only {', '.join(sorted(allowed))}")
            return None
        route, places, domain = found
        parameters = {
            name: decode_segment(segments[place], form=name in FORM_ENCODED) for name, place in places
        }
        if domain:
            parameters["domain"] = domain
        return Match(route, parameters)

    def _find(
        self, node: _Node, segments: list[str], depth: int, method: str, allowed: set[str]
    ) -> tuple[Route, tuple[tuple[str, int], ...], str] | None:
        if depth == len(segments):
            allowed.update(node.routes)
            return node.routes.get(method)
        segment = segments[depth]
        written = node.written.get(segment)
        if written is not None:
            found = self._find(written, segments, depth + 1, method, allowed)
            if found is not None:
                return found
        if node.any is not None and segment:
            return self._find(node.any, segments, depth + 1, method, allowed)
        return None


def decode_segment(segment: str, *, form: bool = False) -> str:
    """Decode a path's segment, once.

    Raises:
        Refused: it is not UTF-8.
    """
    try:
        return unquote_to_bytes(segment.replace("+", " ") if form else segment).decode()
    except UnicodeDecodeError:
        raise Refused(412, f"Name is not valid: {segment[:80]!r} is not UTF-8") from None
