"""The few questions this room asks of the admin REST API, with the standard library only."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from magnetar.spark.errors import SparkError

TIMEOUT_S = 30.0
REDIRECTS_MAX = 5


class AdminRefused(SparkError):
    """The admin API answered with an error."""

    def __init__(self, method: str, path: str, status: int, reason: str) -> None:
        super().__init__(f"{method} {path}: {status} {reason}")
        self.status = status


class AdminApi:
    """A caller of `/admin/v2/persistent/...` for one broker."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    def internal_stats(self, topic: str) -> dict[str, Any]:
        """Ledgers, last confirmed entry and state of a topic (not of a partitioned one)."""
        answer: dict[str, Any] = self._call("GET", f"{_path(topic)}/internalStats")
        return answer

    def create_topic(self, topic: str) -> None:
        """Make a topic without partitions unless it is there."""
        try:
            self._call("PUT", _path(topic))
        except AdminRefused as refusal:
            if refusal.status != 409:  # It exists: that is what was wanted.
                raise

    def enable_deduplication(self, topic: str) -> None:
        """Let the broker drop what a replayed micro-batch sends again."""
        self._call("POST", f"{_path(topic)}/deduplicationEnabled", True)

    def create_subscription(self, topic: str, name: str, *, earliest: bool) -> None:
        """Make a durable subscription unless it is there."""
        edge = -1 if earliest else (1 << 63) - 1
        position = {"ledgerId": edge, "entryId": edge}
        quoted = urllib.parse.quote(name, safe="")
        try:
            self._call("PUT", f"{_path(topic)}/subscription/{quoted}", position)
        except AdminRefused as refusal:
            if refusal.status != 409:  # It exists: that is what was wanted.
                raise

    def move_subscription(self, topic: str, name: str, ledger_id: int, entry_id: int) -> None:
        """Acknowledge everything up to an entry."""
        body = {
            "ledgerId": ledger_id,
            "entryId": entry_id,
            "partitionIndex": -1,
            "batchIndex": -1,
            "isExcluded": True,
        }
        self._call(
            "POST", f"{_path(topic)}/subscription/{urllib.parse.quote(name, safe='')}/resetcursor", body
        )

    def terminate(self, topic: str) -> None:
        """Say that nothing will be published any more."""
        self._call("POST", f"{_path(topic)}/terminate")

    def _call(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        url = f"{self._url}/admin/v2{path}"
        for _ in range(REDIRECTS_MAX):
            request = urllib.request.Request(
                url, data=data, method=method, headers={"Content-Type": "application/json"}
            )
            try:
                with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                    text = response.read()
                return json.loads(text) if text else None
            except urllib.error.HTTPError as error:
                # urllib goes along by itself only with what is read.
                location = error.headers.get("Location")
                if error.code not in (307, 308) or not location:
                    raise AdminRefused(method, path, error.code, _reason(error.read())) from error
                error.close()
                url = urllib.parse.urljoin(url, location)
        raise AdminRefused(method, path, 508, f"sent on {REDIRECTS_MAX} times, last to {url}")


def _path(topic: str) -> str:
    domain, separator, rest = topic.partition("://")
    parts = rest.split("/", 2) if separator else []
    if len(parts) != 3:
        raise SparkError(
            f"'{topic}' is not a full topic name, for example persistent://public/default/flights"
        )
    return "/" + "/".join(urllib.parse.quote(part, safe="") for part in (domain, *parts))


def _reason(body: bytes) -> str:
    try:
        return str(json.loads(body)["reason"])
    except (ValueError, KeyError, TypeError):
        return body.decode("utf-8", "replace")[:200]
