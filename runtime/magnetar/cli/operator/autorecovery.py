"""`magnetar autorecovery status|underreplicated|trigger`."""

from __future__ import annotations

import typer

from magnetar.cli.operator.store import (
    JsonOption,
    StoreOption,
    show_json,
    show_table,
    with_cluster,
)
from magnetar.cli.units import iso_time
from magnetar.ledger.underreplicated import UnderreplicatedLedgers

app = typer.Typer()


@app.command("underreplicated")
def underreplicated(metadata_store: StoreOption = "", json: JsonOption = False) -> None:
    """Name the ledgers that have fewer copies than they should, oldest mark first."""
    found = with_cluster(metadata_store, lambda cluster: UnderreplicatedLedgers(cluster.metadata).list())
    found = sorted(found, key=lambda each: (each.since_ms, each.ledger_id))
    if json:
        show_json(
            [
                {"ledgerId": each.ledger_id, "missing": list(each.missing), "sinceMs": each.since_ms}
                for each in found
            ]
        )
        return
    rows = [(each.ledger_id, " ".join(each.missing), iso_time(each.since_ms)) for each in found]
    show_table(("LEDGER", "MISSING ON", "SINCE"), rows, empty="all is whole")
