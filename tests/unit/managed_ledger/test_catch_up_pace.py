"""Readers behind the tail go slowly while others append, and never so slowly that they cannot catch up."""

from __future__ import annotations

import asyncio
import random

from magnetar.ledger.client import LedgerClient
from magnetar.managed_ledger import ManagedLedgerConfig
from magnetar.managed_ledger.catch_up_pace import CALM_S, REST_MAX_S, TURN_BYTES, AppendRate, CatchUpPace
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from tests.unit.managed_ledger.test_managed_ledger import NAME, Appends, House, payloads


class Meter:
    """The processor time of a thread."""

    def __init__(self) -> None:
        self.used_s = 0.0

    def __call__(self) -> float:
        return self.used_s


def test_nothing_holds_them_back_while_nobody_appends() -> None:
    meter = Meter()
    pace = CatchUpPace(0.5, meter)
    for turn in range(100):
        meter.used_s += 0.002
        assert pace.turn(-1.0, 0.0, turn * 0.002) == (0.0, None)


def test_they_rest_until_the_loop_was_busy_for_its_share_and_no_longer() -> None:
    meter, now, busy = Meter(), 0.0, 0.0
    pace = CatchUpPace(0.5, meter)
    for _ in range(1000):
        rest_s, turn_bytes = pace.turn(now, 0.0, now)
        assert turn_bytes == TURN_BYTES
        now += rest_s
        meter.used_s += 0.002
        now += 0.002
        busy += 0.002
    assert 0.45 < busy / now < 0.55
    assert pace.rests > 400


def test_a_loop_that_idles_as_they_read_holds_nobody_back() -> None:
    meter = Meter()
    pace = CatchUpPace(0.5, meter)
    for turn in range(100):
        assert pace.turn(turn * 0.01, 0.0, turn * 0.01) == (0.0, TURN_BYTES)
        meter.used_s += 0.004


def test_a_rest_is_bounded_however_busy_others_keep_the_loop() -> None:
    meter = Meter()
    pace = CatchUpPace(0.3, meter)
    pace.turn(0.0, 0.0, 0.0)
    meter.used_s += 60.0
    assert pace.turn(60.0, 0.0, 60.0) == (REST_MAX_S, TURN_BYTES)


def test_whoever_is_behind_may_read_more_than_is_appended() -> None:
    meter = Meter()
    pace = CatchUpPace(0.3, meter)
    pace.turn(0.0, 50e6, 0.0)
    meter.used_s += 60.0
    rest_s, turn_bytes = pace.turn(60.0, 50e6, 60.0)
    assert turn_bytes is not None
    assert 0 < rest_s < REST_MAX_S
    assert turn_bytes / rest_s > 2 * 50e6


def test_appends_count_for_a_moment_after_the_last_was_answered() -> None:
    pace = CatchUpPace(0.5, Meter())
    assert pace.turn(0.0, 0.0, 0.0)[1] == TURN_BYTES
    assert pace.turn(0.0, 0.0, CALM_S / 2)[1] == TURN_BYTES
    assert pace.turn(0.0, 0.0, 2 * CALM_S) == (0.0, None)


def test_the_rate_of_a_log_is_that_of_late() -> None:
    rate = AppendRate()
    assert rate.look(10**9, 5.0) == 0.0  # Nothing is known yet.
    assert rate.look(10**9 + 10**6, 5.01) == 0.0
    assert 1.9e6 < rate.look(10**9 + 2 * 10**5, 5.1) < 2.1e6
    assert rate.look(2 * 10**9, 5000.0) == 0.0  # That was long ago.


def test_a_reader_behind_the_tail_rests_and_reads_little_while_somebody_appends() -> None:
    house = House(3)

    async def story() -> None:
        owner = house.owner()
        meter = Meter()
        pace = CatchUpPace(0.5, meter)
        client = LedgerClient(owner.store, owner.bookies, clock=house.clock, random=random.Random(1))
        factory = ManagedLedgerFactory(owner.store, client, clock=house.clock, pace=pace)
        log = await factory.open(NAME, ManagedLedgerConfig(3, 3, 2))
        appends = Appends(log)
        big = [b"x" * 100_000 for _ in range(10)]
        appends.append(*big)
        await appends.all_answered(10)
        cursor = await log.open_cursor("behind", initial="earliest")
        await asyncio.sleep(1.0)
        assert len(await cursor.read(10, 4 * TURN_BYTES)) == 10  # Nobody appends: as much as was asked for.
        cursor.rewind()
        appends.append(*payloads(2))
        await appends.all_answered(12)
        assert len(await cursor.read(10, 4 * TURN_BYTES)) == 2
        meter.used_s += 1.0
        began = asyncio.get_running_loop().time()
        await cursor.read(10, 4 * TURN_BYTES)
        assert asyncio.get_running_loop().time() - began >= REST_MAX_S
        assert pace.rests == 1
        # Whoever reads along at the tail has nothing to do with all this.
        tail = await log.open_cursor("tail")
        await tail.read(1, 1)
        appends.append(*payloads(2))
        await appends.all_answered(14)
        meter.used_s += 1.0
        assert len(await tail.read(2, 4 * TURN_BYTES)) == 2
        assert pace.rests == 1
        await factory.close()
        await client.close()

    house.run(story())
