"""What operators ask: status, an audit now, copies by hand, a bookie taken out, ledgers moved."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from magnetar.autorecovery import decommission as decommissions
from magnetar.autorecovery.decommission import DecommissionProgress, decommission
from magnetar.autorecovery.errors import AuditPaused, NoAuditor, UnknownBookie
from magnetar.autorecovery.operations import LedgerStep, move_ledgers, recover_bookie, status, trigger
from magnetar.autorecovery.records import LEAVING_PATH, set_lost_bookie_delay_s
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import ReadFailed
from magnetar.protocol.bookie import COOKIES_PATH, READ_ONLY_WANTED_PATH
from tests.unit.autorecovery.cluster import SETTINGS, Cluster, write


async def closed_ledger(client: LedgerClient, entries: int = 9, size: int = 3, quorum: int = 2) -> int:
    writer = await client.create(size, quorum, quorum)
    if entries:
        await write(writer, entries)
    await writer.close()
    return writer.ledger_id


async def names(client: LedgerClient, ledger_id: int) -> set[str]:
    metadata = await client.metadata_of(ledger_id)
    return {bookie for segment in metadata.segments for bookie in segment.ensemble}


async def each_copy_is_there(cluster: Cluster, client: LedgerClient, ledger_id: int) -> None:
    metadata = await client.metadata_of(ledger_id)
    for entry in range(metadata.last_entry + 1):
        for bookie in metadata.fragment_of(entry).write_set(entry):
            assert cluster.bookies[bookie].holds(ledger_id, entry), (bookie, entry)


def test_an_audit_on_demand_waits_for_nobody_and_says_when_it_is_done() -> None:
    async def story(cluster: Cluster) -> None:
        client, _ = cluster.client()
        ledger_id = await closed_ledger(client)
        slow = replace(SETTINGS, lost_bookie_recovery_delay_s=100_000)
        daemon, _ = cluster.autorecovery(settings=slow)
        daemon.auditor.start()
        await asyncio.sleep(1)
        lost = sorted(await names(client, ledger_id))[0]
        await cluster.kill(lost)
        await asyncio.sleep(100)
        assert (await status(cluster.store)).underreplicated == ()
        await trigger(cluster.store, wait_s=30)
        (mark,) = (await status(cluster.store)).underreplicated
        assert (mark.ledger_id, mark.missing) == (ledger_id, (lost,))
        await daemon.auditor.stop()

    Cluster(4).run(story)


def test_an_audit_that_nobody_can_do_is_told() -> None:
    async def story(cluster: Cluster) -> None:
        with pytest.raises(NoAuditor):
            await trigger(cluster.store, wait_s=10)
        await cluster.marks.pause()
        with pytest.raises(AuditPaused):
            await trigger(cluster.store)

    Cluster(1).run(story)


def test_the_delay_can_be_changed_while_it_runs() -> None:
    async def story(cluster: Cluster) -> None:
        client, _ = cluster.client()
        await closed_ledger(client)
        daemon, _ = cluster.autorecovery(settings=replace(SETTINGS, lost_bookie_recovery_delay_s=100_000))
        daemon.start()
        await asyncio.sleep(1)
        await cluster.kill("a")
        await asyncio.sleep(100)
        assert daemon.auditor.marked == 0
        await set_lost_bookie_delay_s(cluster.store, 5)
        await asyncio.sleep(6)
        assert daemon.auditor.marked == 1
        await daemon.stop()

    Cluster(4).run(story)


def test_status_tells_who_leads_and_who_works() -> None:
    async def story(cluster: Cluster) -> None:
        assert (await status(cluster.store)).auditor is None
        one, _ = cluster.autorecovery("one")
        two, store = cluster.autorecovery("two")
        one.start()
        await asyncio.sleep(1)
        two.start()
        await asyncio.sleep(1)
        found = await status(cluster.store)
        assert found.auditor == "one"
        assert found.workers == ("one", "two")
        assert not found.paused
        await one.stop()
        await asyncio.sleep(1)
        assert (await status(cluster.store)).auditor == "two"
        store.expire()
        await asyncio.sleep(10)
        assert (await status(cluster.store)).workers == ("two",), "it comes back with its next session"
        await two.stop()
        assert (await status(cluster.store)).workers == ()

    Cluster(1).run(story)


async def steps_of_recovery(cluster: Cluster, bookie: str, accept_loss: bool = False) -> list[LedgerStep]:
    store = cluster.connect()
    client, view = cluster.client(store)
    return [
        step
        async for step in recover_bookie(
            store, client, view, bookie, settings=SETTINGS, name="by hand", accept_loss=accept_loss
        )
    ]


def test_a_dead_bookies_ledgers_are_copied_by_hand() -> None:
    async def story(cluster: Cluster) -> None:
        client, _ = cluster.client()
        ledgers = [await closed_ledger(client) for _ in range(4)]
        opened = await client.create(4, 2, 2)
        await write(opened, 5)
        lost = opened.metadata.segments[0].ensemble[0]
        await cluster.kill(lost)
        steps = await steps_of_recovery(cluster, lost)
        assert steps
        assert not [step for step in steps if step.problem]
        assert opened.ledger_id in {step.ledger_id for step in steps}
        for ledger_id in [*ledgers, opened.ledger_id]:
            assert lost not in await names(client, ledger_id)
            await each_copy_is_there(cluster, client, ledger_id)
        assert (await client.metadata_of(opened.ledger_id)).closed
        with pytest.raises(UnknownBookie):
            await steps_of_recovery(cluster, "nobody")

    Cluster(5).run(story)


def test_copying_by_hand_keeps_the_marks_of_what_it_does_not_look_at() -> None:
    """A living bookie that lacks an entry of the open fragment: filled up too, or it stays marked."""

    async def story(cluster: Cluster) -> None:
        client, _ = cluster.client()
        writer = await client.create(3, 3, 2)
        await write(writer, 6)
        lost = writer.metadata.segments[0].ensemble[0]
        await cluster.kill(lost)
        await write(writer, 6)
        await asyncio.sleep(1)
        slow = next(each for each in writer.metadata.segments[-1].ensemble)
        entries = cluster.bookies[slow].ledgers[writer.ledger_id].entries
        del entries[writer.metadata.segments[-1].first_entry + 1]
        await cluster.marks.mark(writer.ledger_id, [slow])
        steps = await steps_of_recovery(cluster, lost)
        assert not [step for step in steps if step.problem]
        assert await cluster.marks.ids() or set(range(6, 12)) <= set(entries)
        assert not (await client.metadata_of(writer.ledger_id)).closed

    Cluster(4).run(story)


def test_what_is_lost_stands_in_the_way_until_an_operator_consents() -> None:
    async def story(cluster: Cluster) -> None:
        client, _ = cluster.client()
        ledger_id = await closed_ledger(client)
        a, b, _ = (await client.metadata_of(ledger_id)).segments[0].ensemble
        await cluster.kill(a)
        await cluster.kill(b)
        (step,) = await steps_of_recovery(cluster, a)
        assert "3 entries (0, 3, 6)" in step.problem
        assert {a, b} <= await names(client, ledger_id)
        (step,) = await steps_of_recovery(cluster, a, accept_loss=True)
        assert not step.problem
        assert step.slots == 2
        assert not {a, b} & await names(client, ledger_id)
        (report,) = (await status(cluster.store)).lost
        assert report.lost_count == 3, "it is still known what was given up"
        reader = await client.open(ledger_id, recover=False)
        for entry in range(9):
            if entry % 3:
                assert [each.entry_id for each in await reader.read(entry, entry)] == [entry]
            else:
                with pytest.raises(ReadFailed):
                    await reader.read(entry, entry)

    Cluster(6).run(story)


async def watch_read_only(cluster: Cluster) -> None:
    """What a bookie does about the wish of an operator."""
    while True:
        wanted = await cluster.store.children(READ_ONLY_WANTED_PATH)
        for name, bookie in cluster.bookies.items():
            bookie.read_only = name in wanted
        await asyncio.sleep(0.2)


async def progress_of(cluster: Cluster, bookie: str) -> list[DecommissionProgress]:
    store = cluster.connect()
    client, view = cluster.client(store)
    return [
        progress
        async for progress in decommission(store, client, view, bookie, clock=cluster.clock, poll_s=0.5)
    ]


def test_a_living_bookie_is_emptied_and_taken_out() -> None:
    """It may be the only one with some copies: they are read from itself."""

    async def story(cluster: Cluster) -> None:
        obeying = asyncio.get_running_loop().create_task(watch_read_only(cluster))
        client, _ = cluster.client()
        ledgers = [await closed_ledger(client, 9, 3, 1) for _ in range(5)]
        ledgers += [await closed_ledger(client, 0), await closed_ledger(client, 4, 1, 1)]
        ledgers.append(await closed_ledger(client, 4, 4, 4))
        opened = await client.create(4, 2, 2)
        await write(opened, 5)
        daemon, _ = cluster.autorecovery(settings=replace(SETTINGS, copy_bytes_per_s=100))
        daemon.start()
        reports = await progress_of(cluster, "b")
        assert reports[-1].done
        assert reports[0].ledgers_left == reports[0].ledgers_total > 0
        assert reports[0].bytes_left > 0
        assert reports[0].workers == 1
        counts = [each.ledgers_left for each in reports]
        assert counts == sorted(counts, reverse=True)
        assert any(each.expected_s for each in reports)
        for ledger_id in [*ledgers, opened.ledger_id]:
            assert "b" not in await names(client, ledger_id)
            if (await client.metadata_of(ledger_id)).closed:
                await each_copy_is_there(cluster, client, ledger_id)
        for path in (COOKIES_PATH, LEAVING_PATH):
            assert not await cluster.store.exists(f"{path}/b")
        await asyncio.sleep(1)
        assert cluster.bookies["b"].read_only, "until its process ends it must get no new ledgers"
        obeying.cancel()
        await daemon.stop()

    Cluster(5).run(story)


def test_ledgers_made_after_the_auditor_has_looked_are_moved_too() -> None:
    async def story(cluster: Cluster) -> None:
        client, _ = cluster.client()
        daemon, _ = cluster.autorecovery()
        daemon.start()
        await asyncio.sleep(1)
        decommissioning = asyncio.get_running_loop().create_task(progress_of(cluster, "b"))
        await asyncio.sleep(10)  # It is said to leave, and has not heard yet that it is to be read-only.
        ledgers = [await closed_ledger(client, 4, 4, 2) for _ in range(6)]
        late = [each for each in ledgers if "b" in await names(client, each)]
        assert late
        obeying = asyncio.get_running_loop().create_task(watch_read_only(cluster))
        async with asyncio.timeout(600):
            reports = await decommissioning
        assert reports[-1].done
        for ledger_id in late:
            assert "b" not in await names(client, ledger_id)
            await each_copy_is_there(cluster, client, ledger_id)
        obeying.cancel()
        await daemon.stop()

    Cluster(5).run(story)


def test_a_dead_bookie_leaves_no_notes() -> None:
    async def story(cluster: Cluster) -> None:
        client, _ = cluster.client()
        ledger_id = await closed_ledger(client)
        gone = sorted(await names(client, ledger_id))[0]
        await cluster.kill(gone)
        daemon, _ = cluster.autorecovery()
        daemon.start()
        assert (await progress_of(cluster, gone))[-1].done
        for path in (COOKIES_PATH, READ_ONLY_WANTED_PATH, LEAVING_PATH):
            assert not await cluster.store.exists(f"{path}/{gone}")
        await daemon.stop()

    Cluster(5).run(story)


def test_a_decommission_that_cannot_end_says_why() -> None:
    async def story(cluster: Cluster) -> None:
        obeying = asyncio.get_running_loop().create_task(watch_read_only(cluster))
        client, _ = cluster.client()
        ledger_id = await closed_ledger(client, 6, 3, 2)
        daemon, _ = cluster.autorecovery()
        daemon.start()
        reports = await progress_of(cluster, "a")
        assert not reports[-1].done
        assert reports[-1].stuck
        (blocked,) = reports[-1].blocked
        assert blocked.ledger_id == ledger_id
        assert "start another one" in blocked.reason
        assert await cluster.store.exists(f"{COOKIES_PATH}/a")
        # What it wanted comes, and it is asked again.
        await cluster.start("h")
        assert (await progress_of(cluster, "a"))[-1].done
        assert "a" not in await names(client, ledger_id)
        obeying.cancel()
        await daemon.stop()

    Cluster(3).run(story)


def test_a_decommission_is_taken_back() -> None:
    async def story(cluster: Cluster) -> None:
        client, view = cluster.client()
        await closed_ledger(client)
        progress = decommission(cluster.store, client, view, "a", clock=cluster.clock)
        assert not (await anext(progress)).done
        await progress.aclose()  # type: ignore[attr-defined]
        assert (await status(cluster.store)).leaving == ("a",)
        await decommissions.cancel(cluster.store, "a")
        await decommissions.cancel(cluster.store, "a")
        assert (await status(cluster.store)).leaving == ()
        assert await cluster.store.exists(f"{COOKIES_PATH}/a")
        with pytest.raises(UnknownBookie):
            await anext(decommission(cluster.store, client, view, "nobody", clock=cluster.clock))

    Cluster(3).run(story)


def test_old_ledgers_are_moved_onto_a_new_bookie() -> None:
    async def story(cluster: Cluster) -> None:
        client, _ = cluster.client()
        ledgers = [await closed_ledger(client) for _ in range(3)]
        opened = await client.create(3, 2, 2)
        await cluster.start("h")
        store = cluster.connect()
        mover, view = cluster.client(store)
        steps = [
            step
            async for step in move_ledgers(
                store,
                mover,
                view,
                [*ledgers, opened.ledger_id, 999],
                onto=["h"],
                settings=SETTINGS,
                name="by hand",
            )
        ]
        assert [step.slots for step in steps] == [1, 1, 1, 0, 0]
        assert "open" in steps[3].problem
        assert "no such ledger" in steps[4].problem
        for ledger_id in ledgers:
            assert "h" in await names(client, ledger_id)
            await each_copy_is_there(cluster, client, ledger_id)
        with pytest.raises(UnknownBookie):
            await anext(
                move_ledgers(store, mover, view, ledgers, onto=["x"], settings=SETTINGS, name="by hand")
            )

    Cluster(3).run(story)


def test_a_lock_taken_by_a_worker_is_respected() -> None:
    async def story(cluster: Cluster) -> None:
        client, _ = cluster.client()
        ledger_id = await closed_ledger(client)
        lost = sorted(await names(client, ledger_id))[0]
        await cluster.kill(lost)
        lock = await cluster.marks.lock(ledger_id, "a worker")
        assert lock is not None
        (step,) = await steps_of_recovery(cluster, lost)
        assert "worker" in step.problem
        assert lost in await names(client, ledger_id)
        await lock.release()

    Cluster(4).run(story)
