"""What a bookie in limbo is told: which entries it should hold, and where others have them."""

from __future__ import annotations

from magnetar.autorecovery.bookie_peers import BookiePeers
from tests.unit.autorecovery.cluster import Cluster, write


def test_a_bookie_learns_its_stripes_and_gets_entries_from_others() -> None:
    async def story(cluster: Cluster) -> None:
        client, _ = cluster.client()
        closed = await client.create(3, 2, 2)
        await write(closed, 6)
        await closed.close()
        still_open = await client.create(3, 3, 3)
        await write(still_open, 2)
        slot = closed.metadata.segments[0].ensemble.index("a")
        wanted = {entry for entry in range(6) if slot in {entry % 3, (entry + 1) % 3}}

        peers = BookiePeers(client.surroundings, "a")
        assert await peers.ledgers() == {closed.ledger_id, still_open.ledger_id}
        assert await peers.fenceable() == {closed.ledger_id, still_open.ledger_id}
        holdings = await peers.holdings(closed.ledger_id)
        assert holdings is not None
        assert holdings.settled
        assert {e for first, last in holdings.ranges for e in range(first, last + 1)} == wanted
        unsettled = await peers.holdings(still_open.ledger_id)
        assert unsettled is not None
        assert not unsettled.settled
        assert await peers.holdings(10**6) is None
        assert await BookiePeers(client.surroundings, "zz").ledgers() == set()

        asked: list[int] = []
        registry = client.surroundings.registry
        get = registry.get

        async def counted(ledger_id: int) -> object:
            asked.append(ledger_id)
            return await get(ledger_id)

        registry.get = counted  # type: ignore[method-assign,assignment]
        for entry in wanted:
            stored = cluster.bookies["a"].ledgers[closed.ledger_id].entries[entry]
            cluster.bookies["a"].ledgers[closed.ledger_id].entries[entry] = b"never asked"
            assert await peers.fetch(closed.ledger_id, entry) == stored
        assert asked == [closed.ledger_id], "metadata are read once, and not for each entry"
        await cluster.kill("b")
        await cluster.kill("c")
        assert await peers.fetch(closed.ledger_id, min(wanted)) is None

    Cluster(3).run(story)
