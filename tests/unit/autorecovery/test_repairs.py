"""Loss and repair over bookies in memory, in virtual time: what the auditor marks and the workers mend."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from magnetar.autorecovery.autorecovery import Autorecovery
from magnetar.autorecovery.records import RepairReports
from magnetar.autorecovery.repair import Repair, Repairer
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerFenced, ReadFailed
from magnetar.ledger.underreplicated import LedgerLock, UnderreplicatedLedgers
from magnetar.ledger.writer import LedgerWriter
from magnetar.protocol.bookie import AVAILABLE_PATH, BookieAddress, BookieStatus
from tests.unit.autorecovery.cluster import SETTINGS, Cluster, until, write


async def no_marks(cluster: Cluster) -> bool:
    return not await cluster.marks.ids()


async def marked(daemon: Autorecovery) -> bool:
    return daemon.auditor.marked > 0


async def reported(reports: RepairReports, count: int = 1) -> bool:
    return len(await reports.list()) >= count


def test_a_closed_ledger_gets_its_copies_back() -> None:
    """E3 Qw2 Qa2, one bookie lost: every entry is on both bookies that the metadata name."""

    async def story(cluster: Cluster) -> None:
        client, _ = cluster.client()
        writer = await client.create(3, 2, 2)
        await write(writer, 30)
        await writer.close()
        lost = writer.metadata.segments[0].ensemble[1]
        daemon, _ = cluster.autorecovery()
        daemon.start()
        await asyncio.sleep(1)
        await cluster.kill(lost)
        await asyncio.sleep(8)
        assert await no_marks(cluster), "it may come back"
        await until(lambda: marked(daemon))
        await until(lambda: no_marks(cluster))
        metadata = await client.metadata_of(writer.ledger_id)
        assert lost not in metadata.segments[0].ensemble
        for entry in range(30):
            for bookie in metadata.fragment_of(entry).write_set(entry):
                assert cluster.bookies[bookie].holds(writer.ledger_id, entry), (bookie, entry)
        assert daemon.worker.counts.entries == 20, "only what lies in the stripe of the slot is copied"
        samples = {sample.name: sample.value for sample in daemon.metrics()}
        assert samples["replication_worker_NUM_ENTRIES_WRITTEN"] == 20
        assert samples["auditor_leading"] == 1
        await daemon.stop()

    Cluster(4).run(story)


def test_a_bookie_that_returns_in_time_costs_nothing() -> None:
    async def story(cluster: Cluster) -> None:
        client, _ = cluster.client()
        writer = await client.create(3, 2, 2)
        await write(writer, 5)
        await writer.close()
        daemon, _ = cluster.autorecovery()
        daemon.start()
        await asyncio.sleep(1)
        before = await client.metadata_of(writer.ledger_id)
        await cluster.kill("a")
        await asyncio.sleep(9)
        await cluster.start("a")
        await asyncio.sleep(60)
        assert await client.metadata_of(writer.ledger_id) == before
        assert daemon.auditor.marked == 0
        await daemon.stop()

    Cluster(4).run(story)


def test_marks_are_cancelled_when_the_bookie_returns() -> None:
    """There is no other to copy to; then it comes back, and no ledger is left marked or reported."""

    async def story(cluster: Cluster) -> None:
        client, _ = cluster.client()
        writers = [await client.create(3, 2, 2) for _ in range(5)]
        for writer in writers:
            await write(writer, 6)
            await writer.close()
        daemon, store = cluster.autorecovery(settings=replace(SETTINGS, retry_s=1000, retry_max_s=1000))
        daemon.start()
        await asyncio.sleep(1)
        await cluster.kill("b")
        await until(lambda: marked(daemon))
        reports = RepairReports(store)
        await until(lambda: reported(reports, 5))
        assert "start another one" in (await reports.list())[0].reason
        await cluster.start("b")
        await until(lambda: no_marks(cluster), 5)
        assert await reports.list() == []
        await daemon.stop()

    Cluster(3).run(story)


def test_the_writer_of_an_open_ledger_helps_itself() -> None:
    """E3 Qw2 Qa1, a bookie lost, the writer alive: a new fragment, and the old one is repaired. No fence."""

    async def story(cluster: Cluster) -> None:
        client, _ = cluster.client()
        writer = await client.create(3, 2, 1)
        await write(writer, 9)
        await asyncio.sleep(1)
        daemon, _ = cluster.autorecovery(settings=replace(SETTINGS, lost_bookie_recovery_delay_s=0))
        daemon.start()
        await asyncio.sleep(1)
        lost = writer.metadata.segments[0].ensemble[0]
        await cluster.kill(lost)
        await until(lambda: marked(daemon))
        await write(writer, 6)
        await until(lambda: no_marks(cluster))
        await write(writer, 3)
        metadata = await client.metadata_of(writer.ledger_id)
        assert len(metadata.segments) == 2
        assert all(lost not in segment.ensemble for segment in metadata.segments)
        assert await writer.close() == 17
        await daemon.stop()

    Cluster(4).run(story)


def test_an_idle_writer_is_fenced_after_its_grace() -> None:
    async def story(cluster: Cluster) -> None:
        client, _ = cluster.client()
        writer = await client.create(3, 3, 2)
        await write(writer, 9)
        daemon, _ = cluster.autorecovery(settings=replace(SETTINGS, lost_bookie_recovery_delay_s=0))
        daemon.start()
        await asyncio.sleep(1)
        await cluster.kill(writer.metadata.segments[0].ensemble[0])
        started = cluster.clock.monotonic()
        await asyncio.sleep(4)
        assert not (await client.metadata_of(writer.ledger_id)).closed
        await until(lambda: no_marks(cluster))
        assert cluster.clock.monotonic() - started >= SETTINGS.open_ledger_grace_s
        metadata = await client.metadata_of(writer.ledger_id)
        assert metadata.closed
        assert metadata.last_entry == 8
        for bookie in metadata.segments[0].ensemble:
            assert cluster.holds_all(writer.ledger_id, bookie, 9)
        try:
            await write(writer, 1)
        except LedgerFenced:
            pass
        else:
            raise AssertionError("an append was acknowledged after the fence")
        await daemon.stop()

    Cluster(4).run(story)


def test_writer_and_bookie_lost_is_reported() -> None:
    """E3 Qw2 Qa1: an entry may have been on the lost bookie alone; the ledger is not closed without it."""

    async def story(cluster: Cluster) -> None:
        client, _ = cluster.client()
        writer = await client.create(3, 2, 1)
        await write(writer, 9)
        daemon, store = cluster.autorecovery(settings=replace(SETTINGS, lost_bookie_recovery_delay_s=0))
        daemon.start()
        await asyncio.sleep(1)
        await cluster.kill(writer.metadata.segments[0].ensemble[2])
        reports = RepairReports(store)
        await until(lambda: reported(reports))
        (report,) = await reports.list()
        assert report.ledger_id == writer.ledger_id
        assert "cannot be recovered" in report.reason
        assert not (await client.metadata_of(writer.ledger_id)).closed
        # The bookie comes back: all of it can be done.
        await cluster.start(writer.metadata.segments[0].ensemble[2])
        await until(lambda: no_marks(cluster))
        assert await reports.list() == []
        await daemon.stop()

    Cluster(4).run(story)


def test_what_is_lost_for_good_is_reported_and_the_rest_served() -> None:
    """E3 Qw2 Qa2, two bookies of a closed ledger lost: an entry in three is gone."""

    async def story(cluster: Cluster) -> None:
        client, _ = cluster.client()
        writer = await client.create(3, 2, 2)
        await write(writer, 9)
        await writer.close()
        before = await client.metadata_of(writer.ledger_id)
        a, b, c = before.segments[0].ensemble
        daemon, store = cluster.autorecovery()
        daemon.start()
        await asyncio.sleep(1)
        await cluster.kill(a)
        await cluster.kill(b)
        reports = RepairReports(store)
        await until(lambda: reported(reports))
        (report,) = await reports.list()
        assert report.lost[0].entries == ((0, 0), (3, 3), (6, 6))
        assert report.lost_count == 3
        assert {a, b, c} == set(report.lost[0].ensemble)
        assert daemon.worker.with_lost == 1
        reader = await client.open(writer.ledger_id, recover=False)
        served = []
        for entry in range(9):
            try:
                served += [each.entry_id for each in await reader.read(entry, entry)]
            except ReadFailed:
                continue
        assert served == [1, 2, 4, 5, 7, 8]
        assert await client.metadata_of(writer.ledger_id) == before, (
            "a lost bookie that returns is still asked"
        )
        # One of them does return: what can be copied is.
        await cluster.start(b)
        await until(lambda: no_marks(cluster))
        assert await reports.list() == []
        after = await client.metadata_of(writer.ledger_id)
        assert a not in after.segments[0].ensemble
        await daemon.stop()

    Cluster(5).run(story)


def test_missing_and_damaged_copies_are_topped_up_in_place() -> None:
    """Qa of Qw copies at the tail: found by the ledger check, copied to where they belong."""

    async def story(cluster: Cluster) -> None:
        client, _ = cluster.client()
        writer = await client.create(3, 3, 2)
        await write(writer, 20)
        await asyncio.sleep(1)
        await writer.close()
        before = await client.metadata_of(writer.ledger_id)
        a, b, _ = before.segments[0].ensemble
        held = cluster.bookies[a].ledgers[writer.ledger_id]
        for entry in (5, 18, 19):
            del held.entries[entry]
            held.durable.discard(entry)
        torn = bytearray(cluster.bookies[b].ledgers[writer.ledger_id].entries[19])
        torn[-1] ^= 1
        cluster.bookies[b].ledgers[writer.ledger_id].entries[19] = bytes(torn)
        daemon, _ = cluster.autorecovery(settings=replace(SETTINGS, ledger_check_interval_s=20))
        daemon.start()
        await until(lambda: marked(daemon))
        await until(lambda: no_marks(cluster))
        assert await client.metadata_of(writer.ledger_id) == before
        whole = cluster.bookies[a].ledgers[writer.ledger_id].entries
        assert sorted(whole) == list(range(20))
        for bookie in before.segments[0].ensemble:
            assert cluster.bookies[bookie].ledgers[writer.ledger_id].entries == whole
        assert daemon.worker.counts.entries == 4
        await daemon.stop()

    Cluster(4).run(story)


def test_another_auditor_goes_on_where_one_died() -> None:
    async def story(cluster: Cluster) -> None:
        client, _ = cluster.client()
        for _ in range(10):
            writer = await client.create(2, 2, 2)
            await write(writer, 3)
            await writer.close()
        settings = replace(SETTINGS, lost_bookie_recovery_delay_s=0)
        first, first_store = cluster.autorecovery("first", settings)
        first.auditor.start()
        await asyncio.sleep(1)
        second, _ = cluster.autorecovery("second", settings)
        second.start()
        await asyncio.sleep(1)
        assert first.auditor.leading
        assert not second.auditor.leading
        first_store.expire()
        for _ in range(100):
            if second.auditor.leading:
                break
            await first.auditor.stop()
            await asyncio.sleep(0.1)
        assert second.auditor.leading
        await cluster.kill("a")
        await until(lambda: marked(second))
        await until(lambda: no_marks(cluster))
        for ledger_id in await client.list():
            assert "a" not in (await client.metadata_of(ledger_id)).segments[0].ensemble
        await second.stop()

    Cluster(4).run(story)


def test_a_pause_is_not_looked_at_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the time of a ledger that could not be repaired has come meanwhile."""
    looks = 0
    paused = UnderreplicatedLedgers.paused

    async def counted(marks: UnderreplicatedLedgers) -> bool:
        nonlocal looks
        looks += 1
        return await paused(marks)

    async def story(cluster: Cluster) -> None:
        nonlocal looks
        client, _ = cluster.client()
        writer = await client.create(3, 3, 2)
        await write(writer, 5)
        await writer.close()
        await cluster.kill("a")  # Nobody can take its place.
        daemon, _ = cluster.autorecovery()
        daemon.start()
        await asyncio.sleep(60)
        assert daemon.worker.failed
        await cluster.marks.pause()
        await asyncio.sleep(60)
        monkeypatch.setattr(UnderreplicatedLedgers, "paused", counted)
        await asyncio.sleep(60)
        assert looks < 60
        failed = daemon.worker.failed
        await cluster.marks.resume()
        await asyncio.sleep(60)
        assert daemon.worker.failed > failed
        await daemon.stop()

    Cluster(3).run(story)


def test_nothing_is_done_during_a_pause() -> None:
    async def story(cluster: Cluster) -> None:
        client, _ = cluster.client()
        writer = await client.create(2, 2, 2)
        await write(writer, 3)
        await writer.close()
        daemon, _ = cluster.autorecovery(settings=replace(SETTINGS, lost_bookie_recovery_delay_s=0))
        daemon.start()
        await asyncio.sleep(1)
        await cluster.marks.pause()
        await cluster.kill(writer.metadata.segments[0].ensemble[0])
        await asyncio.sleep(100)
        assert await no_marks(cluster)
        await cluster.marks.resume()
        await until(lambda: marked(daemon), 10)
        await until(lambda: no_marks(cluster))
        await daemon.stop()

    Cluster(4).run(story)


def test_an_empty_ledger_no_longer_names_a_lost_bookie() -> None:
    async def story(cluster: Cluster) -> None:
        client, _ = cluster.client()
        writer = await client.create(3, 2, 2)
        await writer.close()
        daemon, _ = cluster.autorecovery()
        daemon.start()
        await asyncio.sleep(1)
        lost = writer.metadata.segments[0].ensemble[0]
        await cluster.kill(lost)
        await until(lambda: marked(daemon))
        await until(lambda: no_marks(cluster))
        assert lost not in (await client.metadata_of(writer.ledger_id)).segments[0].ensemble
        await daemon.stop()

    Cluster(4).run(story)


def test_the_mark_of_a_deleted_ledger_goes() -> None:
    async def story(cluster: Cluster) -> None:
        daemon, _ = cluster.autorecovery()
        await cluster.marks.mark(77, ["a"])
        daemon.start()
        await until(lambda: no_marks(cluster))
        await daemon.stop()

    Cluster(3).run(story)


def test_a_damaged_source_is_passed_over() -> None:
    """Entry 10 is wrong on one of the two that are left: neither first nor last, nobody has noticed before."""

    async def story(cluster: Cluster) -> None:
        client, _ = cluster.client()
        writer = await client.create(3, 3, 3)
        await write(writer, 20)
        await writer.close()
        a, b, c = writer.metadata.segments[0].ensemble
        right = dict(cluster.bookies[c].ledgers[writer.ledger_id].entries)
        for name, entry in ((b, 10), (c, 12)):
            torn = bytearray(right[entry])
            torn[-1] ^= 1
            cluster.bookies[name].ledgers[writer.ledger_id].entries[entry] = bytes(torn)
        daemon, _ = cluster.autorecovery()
        daemon.start()
        await asyncio.sleep(1)
        await cluster.kill(a)
        await until(lambda: marked(daemon))
        await until(lambda: no_marks(cluster))
        ensemble = (await client.metadata_of(writer.ledger_id)).segments[0].ensemble
        assert a not in ensemble
        torn_left = 0
        for name in ensemble:
            held = cluster.bookies[name].ledgers[writer.ledger_id].entries
            torn_left += sum(held[entry] != right[entry] for entry in right)
        # A damaged copy that was not met, since another served, is for the bookie's own scrub to find.
        assert torn_left <= 1
        assert cluster.bookies[(set(ensemble) - {b, c}).pop()].ledgers[writer.ledger_id].entries == right
        await daemon.stop()

    Cluster(4).run(story)


def test_a_bookie_that_does_not_take_its_own_entries_is_replaced() -> None:
    """Its disk fails where they lie; the rest it can still give."""

    async def story(cluster: Cluster) -> None:
        client, _ = cluster.client()
        writer = await client.create(2, 2, 2)
        await write(writer, 20)
        await writer.close()
        failing, good = writer.metadata.segments[0].ensemble
        del cluster.bookies[failing].ledgers[writer.ledger_id].entries[19]
        cluster.bookies[failing].add = lambda *_: BookieStatus.IO_ERROR  # type: ignore[method-assign]
        await cluster.marks.mark(writer.ledger_id, [failing])
        daemon, _ = cluster.autorecovery()
        daemon.start()
        await until(lambda: no_marks(cluster))
        ensemble = (await client.metadata_of(writer.ledger_id)).segments[0].ensemble
        assert good in ensemble
        assert failing not in ensemble
        for name in ensemble:
            assert cluster.holds_all(writer.ledger_id, name, 20)
        await daemon.stop()

    Cluster(3).run(story)


def test_the_only_copy_found_damaged_while_copying_is_reported() -> None:
    async def story(cluster: Cluster) -> None:
        client, _ = cluster.client()
        writer = await client.create(2, 2, 2)
        await write(writer, 20)
        await writer.close()
        lost, left = writer.metadata.segments[0].ensemble
        torn = bytearray(cluster.bookies[left].ledgers[writer.ledger_id].entries[7])
        torn[40] ^= 1
        cluster.bookies[left].ledgers[writer.ledger_id].entries[7] = bytes(torn)
        daemon, store = cluster.autorecovery()
        daemon.start()
        await asyncio.sleep(1)
        await cluster.kill(lost)
        reports = RepairReports(store)
        await until(lambda: reported(reports))
        (report,) = await reports.list()
        assert report.lost[0].entries == ((7, 7),)
        assert lost in (await client.metadata_of(writer.ledger_id)).segments[0].ensemble
        # It returns: it has what the other has not, and the other gets it.
        await cluster.start(lost)
        await until(lambda: no_marks(cluster))
        whole = cluster.bookies[lost].ledgers[writer.ledger_id].entries
        assert cluster.bookies[left].ledgers[writer.ledger_id].entries == whole
        await daemon.stop()

    Cluster(3).run(story)


def test_an_open_ledger_marked_for_slowness_gets_its_copies_and_keeps_its_writer() -> None:
    """Its bookies are all there: nobody is fenced, and what is confirmed and lacks is copied while it is written."""

    async def story(cluster: Cluster) -> None:
        client, _ = cluster.client()
        writer = await client.create(3, 3, 2)
        await write(writer, 9)
        await write(writer, 1)  # This one tells of the others.
        await asyncio.sleep(1)
        slow = writer.metadata.segments[0].ensemble[1]
        for entry in (4, 5):
            del cluster.bookies[slow].ledgers[writer.ledger_id].entries[entry]
        await cluster.marks.mark(writer.ledger_id, [slow])
        daemon, _ = cluster.autorecovery()
        daemon.start()
        await until(lambda: no_marks(cluster))
        assert sorted(cluster.bookies[slow].ledgers[writer.ledger_id].entries) == list(range(10))
        await write(writer, 5)
        await asyncio.sleep(1)
        assert await writer.close() == 14
        await daemon.stop()

    Cluster(3).run(story)


def test_an_open_ledger_that_nobody_writes_is_not_suspected_for_ever() -> None:
    """Its creation had no answer, say, so that its creator never came back to it: no bookie has heard of it."""

    async def story(cluster: Cluster) -> None:
        client, _ = cluster.client()
        writer = await client.create(3, 3, 2)
        await cluster.marks.mark(writer.ledger_id, [writer.metadata.segments[0].ensemble[1]])
        daemon, _ = cluster.autorecovery()
        daemon.start()
        await until(lambda: no_marks(cluster))
        assert not (await client.metadata_of(writer.ledger_id)).closed
        await daemon.stop()

    Cluster(3).run(story)


def test_a_returning_bookie_does_not_cancel_what_it_lacks_of_an_open_fragment() -> None:
    """It was away while entries were written that nobody else could take for it."""

    async def story(cluster: Cluster) -> None:
        client, _ = cluster.client()
        writer = await client.create(3, 3, 2)
        await write(writer, 6)
        away = writer.metadata.segments[0].ensemble[1]
        await cluster.kill(away)
        await write(writer, 6)
        await asyncio.sleep(3)
        assert await cluster.marks.ids() == [writer.ledger_id]
        daemon, _ = cluster.autorecovery()
        daemon.auditor.start()  # No worker: only the auditor could take the mark away.
        await asyncio.sleep(20)
        await cluster.start(away)
        await asyncio.sleep(60)
        assert await cluster.marks.ids() == [writer.ledger_id]
        daemon.worker.start()
        await until(lambda: no_marks(cluster))
        assert cluster.holds_all(writer.ledger_id, away, 12)
        assert await writer.close() == 11
        await daemon.stop()

    Cluster(3).run(story)


def test_fragments_are_repaired_though_nobody_of_the_last_one_is_there() -> None:
    async def story(cluster: Cluster) -> None:
        client, _ = cluster.client()
        writer = await client.create(2, 2, 2)
        await write(writer, 4)
        gone, kept = writer.metadata.segments[0].ensemble
        await cluster.kill(gone)
        await write(writer, 4)
        await cluster.kill(kept)
        await write(writer, 4)
        assert len(writer.metadata.segments) == 3
        for bookie in writer.metadata.segments[-1].ensemble:
            await cluster.kill(bookie)
        await cluster.start(kept)
        daemon, _ = cluster.autorecovery()
        daemon.start()

        async def repaired() -> bool:
            metadata = await client.metadata_of(writer.ledger_id)
            return gone not in metadata.segments[0].ensemble

        await until(repaired)
        first = (await client.metadata_of(writer.ledger_id)).segments[0]
        for bookie in first.ensemble:
            assert cluster.holds_all(writer.ledger_id, bookie, 4)
        await daemon.stop()

    Cluster(6).run(story)


async def lossy(cluster: Cluster, client: LedgerClient) -> LedgerWriter:
    """A ledger with an entry of its first fragment that nobody has any more, and a second fragment, open."""
    writer = await client.create(2, 2, 2)
    await write(writer, 4)
    gone, kept = writer.metadata.segments[0].ensemble
    await cluster.kill(gone)
    await write(writer, 4)
    del cluster.bookies[kept].ledgers[writer.ledger_id].entries[1]
    assert len(writer.metadata.segments) == 2
    return writer


def test_what_is_lost_does_not_keep_an_open_fragment_from_being_closed_and_copied() -> None:
    async def story(cluster: Cluster) -> None:
        client, _ = cluster.client()
        writer = await lossy(cluster, client)
        kept = writer.metadata.segments[0].ensemble[1]
        other = next(each for each in writer.metadata.segments[1].ensemble if each != kept)
        await cluster.kill(other)
        daemon, store = cluster.autorecovery(settings=replace(SETTINGS, retry_max_s=5))
        daemon.start()
        await until(lambda: reported(RepairReports(store)))
        (report,) = await RepairReports(store).list()
        assert report.lost
        metadata = await client.metadata_of(writer.ledger_id)
        assert metadata.closed
        assert metadata.last_entry == 7
        last = metadata.segments[-1].ensemble
        assert other not in last
        for bookie in last:
            assert all(cluster.bookies[bookie].holds(writer.ledger_id, entry) for entry in range(4, 8))
        await daemon.stop()

    Cluster(5).run(story)


def test_every_time_a_bookie_goes_the_writer_has_its_grace() -> None:
    async def story(cluster: Cluster) -> None:
        client, _ = cluster.client()
        writer = await lossy(cluster, client)
        kept = writer.metadata.segments[0].ensemble[1]
        settings = replace(SETTINGS, lost_bookie_recovery_delay_s=0, retry_s=1, retry_max_s=1)
        daemon, store = cluster.autorecovery(settings=settings)
        daemon.start()
        await until(lambda: reported(RepairReports(store)))
        for _ in range(2):
            await asyncio.sleep(20)
            await cluster.kill(next(each for each in writer.metadata.segments[-1].ensemble if each != kept))
            await asyncio.sleep(3)
            await write(writer, 2)
        await asyncio.sleep(20)
        assert await writer.close() == 11
        await daemon.stop()

    Cluster(6).run(story)


def test_a_bookie_that_tells_its_free_space_has_nothing_tried_again() -> None:
    """Bookies bring their registrations up to date all the time: what cannot be repaired keeps its pauses."""

    async def story(cluster: Cluster) -> None:
        client, _ = cluster.client()
        writer = await client.create(3, 2, 2)
        await write(writer, 6)
        await writer.close()
        daemon, store = cluster.autorecovery(settings=replace(SETTINGS, lost_bookie_recovery_delay_s=0))
        daemon.start()
        await asyncio.sleep(1)
        await cluster.kill("b")
        await until(lambda: reported(RepairReports(store)))
        for free in range(200):
            address = BookieAddress("127.0.0.1:0", "1", free_bytes=free)
            await cluster.store.put(f"{AVAILABLE_PATH}/a", address.encode())
            await asyncio.sleep(1)
        assert daemon.worker.failed <= 8
        await cluster.start("d")
        await until(lambda: no_marks(cluster), 10)
        await daemon.stop()

    Cluster(3).run(story)


@pytest.mark.parametrize("at_once", [1, 3])
def test_ledgers_are_repaired_side_by_side_as_many_as_are_allowed(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them takes minutes: with room for others, those are done long before."""
    under_way: set[int] = set()
    most = 0
    slow: list[int] = []
    repair = Repairer.repair

    async def watched(self: Repairer, ledger_id: int, lock: LedgerLock, **rest: Any) -> Repair:
        nonlocal most
        assert ledger_id not in under_way
        under_way.add(ledger_id)
        most = max(most, len(under_way))
        try:
            await asyncio.sleep(300 if ledger_id in slow else 0.1)
            return await repair(self, ledger_id, lock, **rest)
        finally:
            under_way.discard(ledger_id)

    monkeypatch.setattr(Repairer, "repair", watched)

    async def story(cluster: Cluster) -> None:
        client, _ = cluster.client()
        ledgers = []
        for _ in range(6):
            writer = await client.create(3, 2, 2)
            await write(writer, 5)
            await writer.close()
            ledgers.append(writer.ledger_id)
            await cluster.marks.mark(writer.ledger_id, ["a"], tell=False)
        slow.append(ledgers[0])
        daemon, _ = cluster.autorecovery(settings=replace(SETTINGS, repairs_at_once=at_once))
        daemon.start()
        if at_once > 1:
            await asyncio.sleep(20)
            assert await cluster.marks.ids() == slow
            assert most == at_once
        await until(lambda: no_marks(cluster), 600)
        assert most == at_once
        assert daemon.worker.repaired == 6
        await cluster.marks.mark(slow[0], ["a"])
        await until(lambda: _is(under_way, slow))
        await daemon.stop()
        assert not under_way, "a stop waits for what is under way"

    Cluster(4).run(story)


async def _is(found: set[int], wanted: list[int]) -> bool:
    return found == set(wanted)
