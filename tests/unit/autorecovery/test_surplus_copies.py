"""When a bookie may forget a copy that its ledger's metadata does not name."""

from __future__ import annotations

from magnetar.autorecovery.surplus_copies import SurplusCopies
from magnetar.ledger.metadata import ledger_path
from tests.unit.autorecovery.cluster import Cluster, write


def test_only_a_closed_ledger_that_nobody_repairs_has_surplus_copies() -> None:
    async def story(cluster: Cluster) -> None:
        client, _ = cluster.client()
        closed = await client.create(3, 2, 2)
        await write(closed, 3)
        still_open = await client.create(3, 2, 2)
        await write(still_open, 3)
        surplus = SurplusCopies(client.surroundings.registry, cluster.store, "z")
        ledger_id = closed.ledger_id
        assert not await surplus.is_unnamed(ledger_id), "open: a recovery may be writing to it"
        await closed.close()
        assert await surplus.is_unnamed(ledger_id)
        assert not await surplus.is_unnamed(still_open.ledger_id)
        assert not await surplus.is_unnamed(10**6), "gone: the other collection's"
        assert not await SurplusCopies(client.surroundings.registry, cluster.store, "a").is_unnamed(ledger_id)

        async with surplus.kept_unnamed(ledger_id) as unnamed:
            assert unnamed
            assert await cluster.marks.lock(ledger_id, "a worker") is None
        lock = await cluster.marks.lock(ledger_id, "a worker")
        assert lock is not None
        async with surplus.kept_unnamed(ledger_id) as unnamed:
            assert not unnamed, "a worker copies"
        await lock.release()
        await cluster.marks.mark(ledger_id, ("a",))
        async with surplus.kept_unnamed(ledger_id) as unnamed:
            assert not unnamed, "copies are missing"
        assert await cluster.marks.locks() == {}
        await cluster.store.put(ledger_path(ledger_id), b"what a newer version writes")
        assert not await surplus.is_unnamed(ledger_id), "nobody can tell"

    Cluster(3).run(story)
