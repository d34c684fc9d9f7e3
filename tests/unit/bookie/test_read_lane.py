"""Runs are read side by side, but one after the other while adds are on their way."""

from __future__ import annotations

import asyncio

from magnetar.bookie.read_lane import ReadLane


class Readers:
    """Reads that end when told to."""

    def __init__(self, lane: ReadLane) -> None:
        self._lane = lane
        self.reading: dict[int, asyncio.Event] = {}
        self.tasks: dict[int, asyncio.Task[None]] = {}

    async def begin(self, *numbers: int) -> None:
        for number in numbers:
            self.tasks[number] = asyncio.create_task(self._read(number))
        await asyncio.sleep(0)

    async def end(self, number: int) -> None:
        self.reading[number].set()
        await self.tasks[number]
        await asyncio.sleep(0)

    async def _read(self, number: int) -> None:
        async with self._lane:
            self.reading[number] = asyncio.Event()
            try:
                await self.reading[number].wait()
            finally:
                del self.reading[number]


async def test_several_at_once_while_nothing_is_added() -> None:
    readers = Readers(ReadLane(3, lambda: False))
    await readers.begin(1, 2, 3, 4)
    assert set(readers.reading) == {1, 2, 3}
    await readers.end(2)
    assert set(readers.reading) == {1, 3, 4}
    for number in (1, 3, 4):
        await readers.end(number)


async def test_one_at_a_time_in_the_order_they_came_while_adds_are_on_their_way() -> None:
    adding = True
    readers = Readers(ReadLane(3, lambda: adding))
    await readers.begin(1, 2, 3, 4)
    assert set(readers.reading) == {1}
    await readers.end(1)
    assert set(readers.reading) == {2}
    adding = False
    await readers.end(2)
    assert set(readers.reading) == {3, 4}
    for number in (3, 4):
        await readers.end(number)


async def test_one_that_gives_up_takes_no_place_with_it() -> None:
    readers = Readers(ReadLane(1, lambda: False))
    await readers.begin(1, 2, 3)
    readers.tasks[2].cancel()
    await asyncio.wait([readers.tasks[2]])
    await readers.end(1)
    assert set(readers.reading) == {3}
    await readers.begin(4)
    readers.reading[3].set()  # Its place is 4's from here on, who is cancelled before it wakes.
    await asyncio.sleep(0)
    readers.tasks[4].cancel()
    await asyncio.wait(readers.tasks.values())
    await readers.begin(5)
    assert set(readers.reading) == {5}
    await readers.end(5)
