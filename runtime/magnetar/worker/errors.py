"""WorkerError: all that can go wrong with a request to the function worker. Each knows its HTTP status.

BadRequest           400  the configuration or package cannot work: the message names what is wrong
NotFound             404  no such component (or one of another kind), instance, file
Elsewhere            307  another worker is on duty: ask that one
TriggerTimeout       408  a triggered function published no result in time
PackageTooLarge      413  an upload or download is over the limit
Conflict             409  the component changed meanwhile: ask again
PlatformUnavailable  500  broker, metadata or a download did not answer as it should
NotReady             503  the worker, or a service it would need, is not running
"""

from __future__ import annotations


class WorkerError(Exception):
    """Root of this package's errors; the message is the answer's `reason`."""

    status = 500


class BadRequest(WorkerError):
    status = 400


class NotFound(WorkerError):
    status = 404


class Elsewhere(WorkerError):
    status = 307

    def __init__(self, url: str) -> None:
        super().__init__(f"the function worker on duty is {url}")
        self.url = url


class TriggerTimeout(WorkerError):
    status = 408


class Conflict(WorkerError):
    status = 409


class PackageTooLarge(WorkerError):
    status = 413


class PlatformUnavailable(WorkerError):
    status = 500


class NotReady(WorkerError):
    status = 503
