"""The few REST calls an instance makes: terminating a topic that has come to its end, looking at deduplication."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from magnetar.instance.errors import InstanceError
from magnetar.naming import TopicName

TIMEOUT_S = 30.0


class AdminCallFailed(InstanceError):
    """The admin API answered with an error, or not at all."""

    def __init__(self, what: str, status: int, reason: str) -> None:
        super().__init__(f"{what}: {status or 'no answer'}: {reason}")
        self.status = status


class _SameAgain(urllib.request.HTTPRedirectHandler):
    """To the broker that serves the topic goes the same request, whatever its verb."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if code not in (307, 308):
            return super().redirect_request(req, fp, code, msg, headers, newurl)
        return urllib.request.Request(newurl, req.data, dict(req.header_items()), method=req.get_method())


_opener = urllib.request.build_opener(_SameAgain)


class AdminCalls:
    """Speaks to the admin API at `web_url`; each call runs in a thread."""

    def __init__(self, web_url: str) -> None:
        self._base = f"{web_url.rstrip('/')}/admin/v2"

    async def terminate(self, topic: str) -> None:
        """Terminate a topic, all its partitions if it has any: nothing is published to it any more."""
        metadata = await self._call("GET", f"{_path(topic)}/partitions")
        partitioned = isinstance(metadata, Mapping) and metadata.get("partitions")
        await self._call("POST", f"{_path(topic)}/{'terminate/partitions' if partitioned else 'terminate'}")

    async def deduplication_status(self, topic: str) -> str | None:
        """`Enabled`, `Disabled`…, as the topic's stats say; None where they do not."""
        stats = await self._call("GET", f"{_path(topic)}/stats")
        status = stats.get("deduplicationStatus") if isinstance(stats, Mapping) else None
        return None if status is None else str(status)

    async def _call(self, method: str, path: str) -> Any:
        return await asyncio.to_thread(self._request, method, path)

    def _request(self, method: str, path: str) -> Any:
        body = b"" if method == "POST" else None
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        request = urllib.request.Request(f"{self._base}/{path}", body, headers, method=method)
        try:
            with _opener.open(request, timeout=TIMEOUT_S) as response:
                text = response.read()
        except urllib.error.HTTPError as error:
            reason = error.read().decode("utf-8", "replace")[:500]
            raise AdminCallFailed(f"{method} {path}", error.code, reason) from None
        except OSError as error:
            raise AdminCallFailed(f"{method} {path}", 0, str(error)) from None
        return json.loads(text) if text else None


def _path(topic: str) -> str:
    name = TopicName.parse(topic)
    return "/".join((name.domain, name.tenant, name.namespace, urllib.parse.quote(name.local_name, safe="")))
