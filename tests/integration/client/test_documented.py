"""The Python of docs/client.md, run as it stands there."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.testing.processes import MagnetarProcess

DOCUMENT = Path(__file__).parents[3] / "docs" / "client.md"
URL = "pulsar://127.0.0.1:6650"

pytestmark = pytest.mark.integration


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[MagnetarProcess]:
    with MagnetarProcess.standalone(tmp_path) as process:
        yield process


def test_every_example_runs(platform: MagnetarProcess) -> None:
    examples = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    assert len(examples) == 6
    text = "\n".join(examples)
    assert URL in text
    code = compile(
        text.replace(URL, platform.service_url), str(DOCUMENT), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    )
    running = eval(code, {})
    assert inspect.iscoroutine(running)

    async def run() -> None:
        await asyncio.wait_for(running, 60)

    asyncio.run(run())
