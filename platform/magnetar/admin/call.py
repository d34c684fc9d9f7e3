"""A request, as routes see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import parse_qsl

from magnetar.admin import bodies
from magnetar.admin.errors import Refused, log
from magnetar.naming import NamespaceName, TopicName
from magnetar.policies.errors import BadValue
from magnetar.policies.namespace import Policies

if TYPE_CHECKING:
    from magnetar.admin.admin import Admin
    from magnetar.broker.topic import Topic

Value = TypeVar("Value")

WARNING_HEADER: Final = "x-magnetar-warning"
"""In an answer: it is done, and here is what may come of it. The command shows it."""


class Call:
    """One request: what its path, query and body say, and what its answer has to tell besides."""

    def __init__(
        self,
        admin: Admin,
        parameters: Mapping[str, str],
        *,
        query: str = "",
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        role: str | None = None,
    ) -> None:
        self.admin = admin
        self.parameters = parameters
        self.headers = headers or {}
        self.body = body
        self.role = role
        self.notes: dict[str, str] = {}
        """Headers for the answer."""
        self._query_text = query

    def warn(self, told: Sequence[str]) -> None:
        """Say, beside the answer, what whoever asked should know: done, but."""
        if told:
            self.notes[WARNING_HEADER] = "; ".join(told)
            log.warning("request.warned", path=dict(self.parameters), told=self.notes[WARNING_HEADER])

    def __getitem__(self, parameter: str) -> str:
        """What the path says in the place of `{parameter}`."""
        return self.parameters[parameter]

    # Names.

    @cached_property
    def namespace(self) -> NamespaceName:
        """Raises InvalidName."""
        return NamespaceName(self["tenant"], self["namespace"])

    @cached_property
    def topic(self) -> TopicName:
        """Raises InvalidTopicName."""
        domain = self.parameters.get("domain", "persistent")
        return TopicName.parse(f"{domain}://{self['tenant']}/{self['namespace']}/{self['topic']}")

    # The query.

    @cached_property
    def query(self) -> dict[str, str]:
        """The last value of each name.

        Raises:
            Refused: there are more fields than anybody means.
        """
        try:
            return dict(parse_qsl(self._query_text, keep_blank_values=True, max_num_fields=100))
        except ValueError as error:
            raise Refused(400, f"Invalid query: {error}") from None

    def flag(self, name: str, default: bool = False) -> bool:
        """Raises BadValue."""
        said = self.query.get(name)
        return default if not said else self._of(name, bodies.truth, said)

    def number(self, name: str, default: int) -> int:
        """Raises BadValue."""
        said = self.query.get(name)
        return default if not said else self._of(name, bodies.integer, said)

    def path_number(self, parameter: str) -> int:
        """Raises BadValue."""
        return self._of(parameter, bodies.integer, self[parameter])

    @staticmethod
    def _of(name: str, read: Callable[[str], Value], said: str) -> Value:
        try:
            return read(said)
        except BadValue as error:
            raise BadValue(f"{name}: {error}") from None

    # The body.

    @cached_property
    def json(self) -> Any:
        """What the body says; None if there is none. Raises BadValue."""
        return bodies.read_json(self.body)

    def required(self, what: str) -> Any:
        """The body. Raises BadValue: there is none."""
        if self.json is None:
            raise BadValue(f"A body is missing: {what}")
        return self.json

    # What is there.

    async def policies(self) -> Policies:
        """Of the namespace. Raises NotFound, of the tenant first."""
        return await self.admin.resources.require_namespace(self.namespace)

    async def loaded(self, *, create: bool = False) -> Topic:
        """The topic itself. Raises NotFound, Elsewhere, BrokerError."""
        await self.admin.resources.require_namespace(self.topic.namespace_name)
        return await self.admin.topic(self.topic, create=create)
