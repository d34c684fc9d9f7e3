"""What the worker asks of the admin API, over real HTTP against a server that answers from a script."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from magnetar.worker.broker_admin import RestBrokerAdmin
from magnetar.worker.errors import PlatformUnavailable

pytestmark = pytest.mark.integration

TOPIC = "/admin/v2/persistent/public/default/a%23b"


class Script:
    """Answers by method and path; everything else is 404."""

    def __init__(self) -> None:
        self.answers: dict[str, list[tuple[int, object]]] = {}
        self.asked: list[tuple[str, str]] = []
        self.url = ""


@pytest.fixture
def script() -> Iterator[Script]:
    script = Script()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            question = f"{self.command} {self.path}"
            script.asked.append((question, body))
            answers = script.answers.get(question, [])
            status, value = answers.pop(0) if answers else (404, {"reason": "not found"})
            data = b"" if status == 204 else json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PUT = do_POST = do_DELETE = answer  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        script.url = f"http://127.0.0.1:{server.server_address[1]}"
        yield script
        server.shutdown()
        thread.join()


async def test_tenants_and_namespaces_are_there_or_not(script: Script) -> None:
    script.answers["GET /admin/v2/tenants/public"] = [(200, {})]
    script.answers["GET /admin/v2/namespaces/public/default"] = [(200, {})]
    script.answers["GET /admin/v2/tenants/broken"] = [(500, {"reason": "metadata is away"})]
    admin = RestBrokerAdmin(script.url)
    assert await admin.has_tenant("public")
    assert not await admin.has_tenant("nobody")
    assert await admin.has_namespace("public", "default")
    assert not await admin.has_namespace("public", "nowhere")
    with pytest.raises(PlatformUnavailable, match="500: metadata is away"):
        await admin.has_tenant("broken")


async def test_a_topic_that_is_not_there_yet_is_created_for_its_policy(script: Script) -> None:
    policy = f"POST {TOPIC}/deduplicationEnabled"
    script.answers[policy] = [(404, {"reason": "no topic"}), (204, None)]
    script.answers[f"PUT {TOPIC}"] = [(204, None)]
    await RestBrokerAdmin(script.url).enable_deduplication("persistent://public/default/a#b")
    assert script.asked == [(policy, "true"), (f"PUT {TOPIC}", ""), (policy, "true")]
    script.answers[policy] = [(405, {"reason": "topic policies are turned off"})]
    with pytest.raises(PlatformUnavailable, match="topic policies are turned off"):
        await RestBrokerAdmin(script.url).enable_deduplication("persistent://public/default/a#b")


async def test_a_subscription_that_is_gone_needs_no_deleting(script: Script) -> None:
    path = f"DELETE {TOPIC}/subscription/public%2Fdefault%2Ff?force=true"
    script.answers[path] = [(204, None), (404, {"reason": "gone"}), (412, {"reason": "busy"})]
    admin = RestBrokerAdmin(script.url)
    for _ in range(2):
        await admin.delete_subscription("persistent://public/default/a#b", "public/default/f")
    with pytest.raises(PlatformUnavailable, match="412: busy"):
        await admin.delete_subscription("persistent://public/default/a#b", "public/default/f")


async def test_nobody_there_is_said_so() -> None:
    with pytest.raises(PlatformUnavailable, match=r"admin API at http://127\.0\.0\.1:1 does not answer"):
        await RestBrokerAdmin("http://127.0.0.1:1").has_tenant("public")
