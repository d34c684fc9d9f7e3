"""Who is on duty, and how it begins."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.metadata.memory import MemoryEnsemble
from magnetar.worker import duty as room
from magnetar.worker.duty import Duty


async def test_a_duty_that_cannot_begin_is_tried_again_whatever_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(room, "RETRY_S", 0.01)
    troubles: list[Exception] = [RuntimeError("a component that nobody foresaw"), OSError("no room")]

    async def begin() -> None:
        await asyncio.sleep(0)
        if troubles:
            raise troubles.pop(0)

    store = MemoryEnsemble().connect()
    duty = Duty(store, "w", "http://here", begin=begin, end=lambda: None)
    async with asyncio.timeout(5):
        await duty.start()
        assert duty.on_duty
        await duty.stop()
