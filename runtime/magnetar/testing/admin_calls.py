"""The few REST calls that tests of a cluster need."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

TIMEOUT_S = 60.0


def call(web_url: str, method: str, path: str, body: object = None) -> Any:
    """Call `/admin/v2PATH`; the answer, read as JSON, None if it is empty.

    Raises:
        urllib.error.HTTPError, OSError
    """
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"{web_url}/admin/v2{path}", data, {"Content-Type": "application/json"}, method=method
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def topic_path(topic: str) -> str:
    """`/persistent/tenant/namespace/name`."""
    return topic.replace("persistent://", "/persistent/")


def keep_everything(web_url: str, namespace: str) -> None:
    """Retention without end."""
    forever = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    call(web_url, "POST", f"/namespaces/{namespace}/retention", forever)


def backlogs(web_url: str, topic: str) -> dict[str, int]:
    """What each subscription of a topic has still to do, in messages."""
    stats = call(web_url, "GET", f"{topic_path(topic)}/stats")
    return {name: each["msgBacklog"] for name, each in stats["subscriptions"].items()}
