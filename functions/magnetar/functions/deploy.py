"""Deploy a function from where it is written: a notebook, a script, a test."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from magnetar.functions.config import FunctionConfig
from magnetar.functions.config.fields import json_names
from magnetar.functions.errors import ConfigError, DeployRefused, FunctionsError

DEFAULT_ADMIN_URL = "http://127.0.0.1:8080"


def deploy(
    fn: Callable[..., Any] | type,
    *,
    inputs: str | Sequence[str],
    output: str | None = None,
    name: str | None = None,
    tenant: str = "public",
    namespace: str = "default",
    admin_url: str = DEFAULT_ADMIN_URL,
    update: bool = False,
    timeout_s: float = 60.0,
    **config: Any,
) -> FunctionConfig:
    """Run `fn` for every message of `inputs`, on the platform at `admin_url`, and return its config.

        deploy(lambda line: line.upper(), inputs="lines", output="shouted", name="shout")

    Args:
        fn: `fn(input)`, `fn(input, context)`, or a class with `process`. It travels by cloudpickle, with what it
            closes over; modules it imports must be there too.
        name: its name; by default that of `fn`.
        update: replace a function of that name instead of creating one.
        config: further fields of FunctionConfig, by their Python or JSON names (`processing_guarantees=…`).
    Raises:
        ConfigError: a field is unknown or wrong. Nothing was sent.
        DeployRefused: the platform refused it.
        FunctionsError: the platform cannot be reached.
    """
    import cloudpickle

    own_name = getattr(fn, "__name__", type(fn).__name__)
    fields = {
        "className": f"cloudpickle.{own_name}" if own_name.isidentifier() else "cloudpickle.function",
        "inputs": [inputs] if isinstance(inputs, str) else list(inputs),
        "output": output,
        "runtime": "PYTHON",
        **{_known_json_name(key): value for key, value in config.items()},
    }
    chosen = name or (own_name if own_name.isidentifier() else "")
    parsed = FunctionConfig.from_dict(fields, tenant=tenant, namespace=namespace, name=chosen)
    parsed.validate()
    body, content_type = _multipart(
        ("functionConfig", None, "application/json", json.dumps(parsed.to_dict()).encode()),
        ("data", f"{parsed.name}.cloudpickle", "application/octet-stream", cloudpickle.dumps(fn)),
    )
    url = f"{admin_url.rstrip('/')}/admin/v3/functions/{parsed.fqfn}"
    request = urllib.request.Request(
        url, body, {"Content-Type": content_type}, method="PUT" if update else "POST"
    )
    _send(request, timeout_s)
    return parsed


def _send(request: urllib.request.Request, timeout_s: float) -> None:
    try:
        with urllib.request.urlopen(request, timeout=timeout_s):
            return
    except urllib.error.HTTPError as error:
        raise DeployRefused(error.code, _reason(error.read())) from None
    except OSError as error:
        raise FunctionsError(f"{request.full_url} cannot be reached: {error}") from error


def _reason(body: bytes) -> str:
    try:
        answer = json.loads(body)
    except ValueError:
        return body.decode("utf-8", "replace") or "no reason given"
    return str(answer.get("reason", answer)) if isinstance(answer, Mapping) else str(answer)


def _known_json_name(name: str) -> str:
    names = json_names(FunctionConfig)
    found = (
        name if name in names else next((json_name for json_name, own in names.items() if own == name), None)
    )
    if found is None:
        raise ConfigError(name, "is no field of FunctionConfig")
    return found


def _multipart(*parts: tuple[str, str | None, str, bytes]) -> tuple[bytes, str]:
    boundary = uuid.uuid4().hex
    chunks = []
    for name, filename, content_type, data in parts:
        file = f'; filename="{filename}"' if filename else ""
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{file}\r\nContent-Type: {content_type}\r\n\r\n'
        chunks += [head.encode(), data, b"\r\n"]
    return b"".join(chunks) + f"--{boundary}--\r\n".encode(), f"multipart/form-data; boundary={boundary}"
