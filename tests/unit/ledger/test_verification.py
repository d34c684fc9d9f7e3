"""Every copy that metadata promise is read and compared."""

from __future__ import annotations

import pytest

from magnetar.ledger.verification import LedgerReport
from magnetar.protocol.bookie import AddFlags
from magnetar.protocol.ledger_entry import encode_entry_header
from tests.unit.ledger.house import Appends, House, payloads

SHAPES = [(1, 1, 1), (3, 3, 2), (3, 2, 2), (5, 3, 2), (4, 1, 1)]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_whole_ledger_is_whole_and_every_single_fault_is_found(shape: tuple[int, int, int]) -> None:
    house = House(shape[0] + 1)
    number = 600

    async def story() -> None:
        client = house.client()
        writer = await client.create(*shape)
        appends = Appends(writer)
        appends.append(*payloads(number // 2))
        await appends.answered(number // 2)
        gone = writer.metadata.segments[0].ensemble[0]
        house.bookies[gone].read_only = True  # The ensemble changes in the middle.
        appends.append(*payloads(number // 2))
        await appends.answered(number)
        await writer.close()
        await client.close()
        assert len(writer.metadata.segments) == 2

        async def report() -> LedgerReport:
            return await house.client().verify(writer.ledger_id)

        whole = await report()
        assert whole.whole
        assert (whole.copies, whole.last_entry) == (number * shape[1], number - 1)
        assert whole.length == writer.metadata.length
        for entry_id in (0, 255, 256, 299, 300, number - 1):
            bookie = writer.metadata.fragment_of(entry_id).write_set(entry_id)[-1]
            entries = house.bookies[bookie].ledgers[writer.ledger_id].entries
            kept = entries[entry_id]
            for harm, problem in (
                (None, "NO_SUCH_ENTRY"),
                (kept[:-1] + b"?", "checksum"),
                (forged(writer.ledger_id, entry_id), "not those of the other copies"),
            ):
                if harm is None:
                    del entries[entry_id]
                else:
                    entries[entry_id] = harm
                found = await report()
                entries[entry_id] = kept
                if shape[1] == 1:
                    assert not found.whole
                    assert bool(found.lost) == (harm != forged(writer.ledger_id, entry_id))
                    continue
                assert not found.whole
                assert found.fault_count == 1
                assert found.lost == ()
                fault = found.faults[0]
                assert fault.entry_id == entry_id
                assert problem in fault.problem
                if shape[1] > 2 or problem != "not those of the other copies":
                    assert fault.bookie == bookie
        assert (await report()).whole

    house.run(story())


def forged(ledger_id: int, entry_id: int) -> bytes:
    """Well-formed, and another's."""
    return encode_entry_header(ledger_id, entry_id, entry_id - 1, 99, (b"forged",)) + b"forged"


def test_an_open_ledger_is_verified_up_to_what_is_confirmed() -> None:
    house = House(3)

    async def story() -> None:
        writer = await house.client().create(3, 3, 2)
        appends = Appends(writer)
        appends.append(*payloads(5))
        await appends.answered(5)
        appends.append(b"more")
        await appends.answered(6)
        found = await house.client().verify(writer.ledger_id)
        assert (found.last_entry, found.whole) == (4, True)
        house.bookies["b0"].add(writer.ledger_id, 2, forged(writer.ledger_id, 2), AddFlags.NONE)
        assert not (await house.client().verify(writer.ledger_id)).whole

    house.run(story())
