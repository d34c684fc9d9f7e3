"""Plain names and namespaces."""

from __future__ import annotations

import re
from dataclasses import dataclass

from magnetar.naming.errors import InvalidName, InvalidNamespaceName

_PLAIN_NAME = re.compile(r"[-=:.\w]+", re.ASCII)


def check_name(kind: str, text: str) -> str:
    """Return `text` if it can name a `kind` (tenant, namespace, cluster, …).

    Letters, digits and `- = : . _` are allowed. Source: Pulsar NamedEntity. A lone `.` or `..` is
    refused besides, because names become paths in metadata stores and directories.

    Raises:
        InvalidName: it cannot.
    """
    if not text:
        raise InvalidName(kind, text, "it is empty")
    if not _PLAIN_NAME.fullmatch(text) or text in (".", ".."):
        raise InvalidName(kind, text, "use letters, digits and any of - = : . _ only")
    return text


@dataclass(frozen=True, slots=True, order=True)
class NamespaceName:
    """`tenant/local`."""

    tenant: str
    local: str

    def __post_init__(self) -> None:
        check_name("tenant", self.tenant)
        check_name("namespace", self.local)

    @classmethod
    def parse(cls, text: str) -> NamespaceName:
        """Read `tenant/namespace`.

        Raises:
            InvalidNamespaceName: there are not exactly two parts (names with a cluster in the middle,
                Pulsar's first form, are not served), or a part cannot be a name.
        """
        parts = text.split("/")
        if len(parts) != 2:
            raise InvalidNamespaceName(text, "write tenant/namespace")
        try:
            return cls(parts[0], parts[1])
        except InvalidName as error:
            raise InvalidNamespaceName(text, str(error)) from None

    def __str__(self) -> str:
        return f"{self.tenant}/{self.local}"
