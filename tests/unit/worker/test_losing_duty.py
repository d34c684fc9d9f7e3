"""What is under way when another worker takes over starts nothing here any more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest


class Gate:
    """Holds up whoever comes through, until it is opened."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def __call__(self, *_: object) -> None:
        self.reached.set()
        await self.opened.wait()


@pytest.mark.parametrize("step", ["enable_deduplication", "create_subscription"])
async def test_a_component_registered_while_duty_ends_is_not_started_by_two_workers(
    platform: Any, step: str
) -> None:
    gate = Gate()
    setattr(platform.admin, step, gate)
    registering = asyncio.create_task(platform.register(config={"processingGuarantees": "EFFECTIVELY_ONCE"}))
    await asyncio.wait_for(gate.reached.wait(), 5)
    platform.worker._components.halt()
    gate.opened.set()
    answer = await registering
    assert answer.status_code == 503, answer.text
    assert platform.launcher.children == []


async def test_a_component_changed_while_duty_ends_is_left_to_the_next_worker(platform: Any) -> None:
    assert (await platform.register()).status_code == 204
    gate = Gate()
    platform.admin.create_subscription = gate
    changing = asyncio.create_task(platform.register(config={"parallelism": 2}, method="PUT"))
    await asyncio.wait_for(gate.reached.wait(), 5)
    platform.worker._components.halt()
    await platform.until(lambda: not platform.launcher.running)
    gate.opened.set()
    assert (await changing).status_code == 503
    assert platform.launcher.running == []

    await platform.worker._components.resume()
    (child,) = platform.launcher.running
    assert child.plan.spec["instances"] == [0, 1]
