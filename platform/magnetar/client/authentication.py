"""Who a client says it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Authentication(Protocol):
    """Credentials, asked for at each connection and whenever the broker wants fresh ones."""

    method_name: str
    """Pulsar's name of the method, such as `token`."""

    def data(self) -> bytes:
        """The credentials as they are now."""
        ...


class TokenAuthentication:
    """A JSON web token, given or fetched anew each time."""

    method_name = "token"

    def __init__(self, token: str | Callable[[], str]) -> None:
        self._token = token

    def data(self) -> bytes:
        """The token."""
        return (self._token if isinstance(self._token, str) else self._token()).encode()


class BasicAuthentication:
    """A user and a password."""

    method_name = "basic"

    def __init__(self, user: str, password: str) -> None:
        self._data = f"{user}:{password}".encode()

    def data(self) -> bytes:
        """`user:password`."""
        return self._data
