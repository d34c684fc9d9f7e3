"""What a ledger client tells of itself."""

from __future__ import annotations

from magnetar.ledger.client import LedgerClient
from magnetar.metrics.exposition import write
from tests.unit.ledger.house import Appends, House, until


def told(client: LedgerClient) -> dict[str, float]:
    return {
        " ".join([sample.name, *sample.labels.values()]).removeprefix("magnetar_ledger_"): sample.value
        for sample in client.metrics()
    }


def test_appends_changes_and_bookies_are_counted() -> None:
    house = House(4)

    async def story() -> None:
        client = house.client()
        writer = await client.create(3, 3, 2)
        appends = Appends(writer)
        appends.append(*[b"x" * 10] * 20)
        assert told(client)["pending_bytes"] == 200
        await appends.answered(20)
        assert told(client)["pending_bytes"] == 0
        victim = writer.metadata.segments[0].ensemble[0]
        house.bookies[victim].crash()
        appends.append(*[b"x" * 10] * 20)
        await appends.answered(40)
        found = told(client)
        assert (found["created_total"], found["writers"], found["appends_total"]) == (1, 1, 40)
        assert found["ensemble_changes_total"] == 1
        assert found["copies_given_up_total"] == 0, "all that waited was sent to another"
        assert found[f"bookie_quarantined {victim}"] == 1
        assert found["lagging_bytes"] == 0
        await until(lambda: all(not value for name, value in told(client).items() if "unanswered" in name))
        await writer.close()
        assert told(client)["writers"] == 0
        await client.recover((await client.create(3, 3, 2)).ledger_id)
        assert told(client)["recoveries_total"] == 1
        page = b"".join(write(client.metrics())).decode()
        assert page.count("# TYPE magnetar_ledger_bookie_quarantined gauge") == 1

    house.run(story())
