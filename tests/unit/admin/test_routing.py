"""The table of routes."""

from __future__ import annotations

import pytest

from magnetar.admin.call import Call
from magnetar.admin.errors import Refused
from magnetar.admin.routes import all_routes
from magnetar.admin.routing import Route, Table


async def handler(call: Call) -> None:
    """Does nothing."""


def table(*rows: str) -> Table:
    return Table(Route(row.split()[0], row.split()[1], handler) for row in rows)


def test_what_is_written_out_goes_first() -> None:
    routes = table("GET /a/{x}/c", "GET /a/b/c", "GET /a/b/{y}")
    found = routes.match("GET", "/a/b/c")
    assert found is not None
    assert found.route.path == "/a/b/c"
    found = routes.match("GET", "/a/b/d")
    assert found is not None
    assert found.parameters == {"y": "d"}
    found = routes.match("GET", "/a/z/c")
    assert found is not None
    assert found.parameters == {"x": "z"}
    assert routes.match("GET", "/a/z/d") is None


def test_a_name_may_be_a_word_of_another_route() -> None:
    """A namespace called like a path of its tenant is found all the same."""
    routes = table("GET /n/{tenant}/antiAffinity/{group}", "POST /n/{tenant}/{namespace}/{policy}")
    found = routes.match("POST", "/n/t/antiAffinity/ttl")
    assert found is not None
    assert found.parameters == {"tenant": "t", "namespace": "antiAffinity", "policy": "ttl"}


def test_segments_are_decoded_once() -> None:
    routes = table("GET /x/{topic}/{value}")
    found = routes.match("GET", "/x/a%252Fb+c%2Fd/a%252Fb+c%2Fd")
    assert found is not None
    assert found.parameters == {"topic": "a%2Fb c/d", "value": "a%2Fb+c/d"}
    with pytest.raises(Refused, match="UTF-8") as refused:
        routes.match("GET", "/x/%ff/y")
    assert refused.value.status == 412


def test_empty_segments_are_nobodys_name() -> None:
    routes = table("GET /x/{a}", "GET /x")
    assert routes.match("GET", "/x//") is None
    found = routes.match("GET", "/x/")
    assert found is not None
    assert found.route.path == "/x"


def test_methods_that_are_not_there() -> None:
    with pytest.raises(Refused, match="only GET, PUT") as refused:
        table("GET /x", "PUT /x").match("DELETE", "/x")
    assert refused.value.status == 405


def test_a_route_stands_once() -> None:
    with pytest.raises(ValueError, match="two routes"):
        table("GET /x/{a}", "GET /x/{b}")


def test_all_routes_fit_together() -> None:
    routes = Table(all_routes())
    assert len(routes.routes) > 300
    for route in routes.routes:
        assert route.handler.__doc__, f"{route.method} {route.path} has no summary"
