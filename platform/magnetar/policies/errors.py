"""PoliciesError: what cannot be stored, found or changed, each with the HTTP status it is told as.

BadValue             the value makes no sense by itself
NotPermitted         policies are read-only now, or the value names what its tenant may not use
NotFound             no such cluster, tenant, namespace, topic or policy
NotAllowed           this kind of thing has no such operation
LimitExceeded        more partitions than this platform allows
Conflict             it exists already, or others keep changing it
PreconditionFailed   the value contradicts what is there
NewerFormat          a record was written by a newer version of the platform
"""

from __future__ import annotations

from typing import ClassVar


class PoliciesError(Exception):
    """The root of this room's errors. Its message is what the user reads."""

    http_status: ClassVar[int] = 500


class BadValue(PoliciesError):
    """The value makes no sense by itself."""

    http_status = 400


class NotPermitted(PoliciesError):
    """Policies are read-only now, or the value names what its tenant may not use."""

    http_status = 403


class NotFound(PoliciesError):
    """No such cluster, tenant, namespace, topic or policy."""

    http_status = 404


class NotAllowed(PoliciesError):
    """This kind of thing has no such operation."""

    http_status = 405


class LimitExceeded(PoliciesError):
    """A number of partitions that is none, or above the platform's limit."""

    http_status = 406


class Conflict(PoliciesError):
    """It exists already, or somebody else keeps changing it."""

    http_status = 409


class PreconditionFailed(PoliciesError):
    """The value contradicts what is there, or a limit of what may be there."""

    http_status = 412


class NewerFormat(PoliciesError):
    """A record was written by a newer version of the platform: upgrade this one."""

    http_status = 500
