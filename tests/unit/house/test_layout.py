"""The house stands as DESIGN says: a namespace in four portions, and imports that point down only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PORTIONS = ("platform", "functions", "connectors", "runtime")

# Room → floor. A room may import what lies on a lower floor, and on its own only what ALLOWED names.
FLOORS = {
    "functions": 0,
    "connectors": 0,
    "environment": 1,
    "naming": 1,
    "metrics": 1,
    "policies": 1,
    "security": 1,
    "protocol": 1,
    "metadata": 1,
    "bookie": 2,
    "ledger": 2,
    "client": 2,
    "managed_ledger": 3,
    "autorecovery": 3,
    "broker": 4,
    "admin": 5,
    "instance": 6,
    "worker": 6,
    "spark": 6,
    "testing": 6,
    "simulation": 6,
    "cli": 6,
}
ALLOWED = {
    "connectors": {"functions"},
    "metrics": {"environment"},
    "metadata": {"environment"},
    "security": {"environment", "naming"},
    "protocol": {"environment", "naming"},
    "policies": {"environment", "naming", "metadata"},
    "worker": {"instance", "spark"},
    "spark": {"instance"},
    "testing": {"spark"},
    "cli": {"worker", "instance", "spark", "testing", "simulation"},
}
# Floor 0 is what users install alone: nothing of the platform, and the SDK nothing but the standard library.
STANDALONE = {"functions", "connectors"}


def rooms() -> Iterator[tuple[str, Path]]:
    for portion in PORTIONS:
        for directory in sorted((ROOT / portion / "magnetar").iterdir()):
            if directory.is_dir() and directory.name != "__pycache__":
                yield directory.name, directory


def imported_rooms(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
            if node.module == "magnetar":
                names = [f"magnetar.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "magnetar" and len(parts) > 1:
                yield parts[1], node.lineno


def sources(directory: Path) -> list[Path]:
    return [
        path
        for path in sorted(directory.rglob("*.py"))
        if not path.name.endswith(("_pb2.py", "_pb2_grpc.py"))
    ]


def test_no_portion_has_an_init() -> None:
    for portion in PORTIONS:
        assert not (ROOT / portion / "__init__.py").exists(), (
            f"{portion}/ would shadow or hide other packages"
        )
        assert not (ROOT / portion / "magnetar" / "__init__.py").exists(), (
            "it would hide the other three portions"
        )
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_every_room_has_a_card_on_its_door() -> None:
    for name, directory in rooms():
        init = directory / "__init__.py"
        assert init.exists(), f"{name} has no __init__.py"
        assert ast.get_docstring(ast.parse(init.read_text())), (
            f"{name}'s __init__.py does not say what it is for"
        )
        assert (directory / "py.typed").exists(), f"{name} has no py.typed"


def test_every_room_stands_on_a_floor() -> None:
    assert {name for name, _ in rooms()} <= FLOORS.keys()


@pytest.mark.parametrize(
    ("room", "directory"), list(rooms()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_imports_point_down(room: str, directory: Path) -> None:
    wrong = []
    for path in sources(directory):
        for other, line in imported_rooms(path):
            if other == room or other in ALLOWED.get(room, ()):
                continue
            if room in STANDALONE or FLOORS.get(other, 99) >= FLOORS[room]:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports magnetar.{other}")
    assert not wrong, "\n".join(wrong)


def test_no_module_without_a_subject_and_none_too_large() -> None:
    for portion in PORTIONS:
        for path in sources(ROOT / portion):
            assert path.stem not in {"util", "utils", "helper", "helpers", "common", "misc"}, path
            assert len(path.read_text().splitlines()) <= 700, f"{path} has grown too large: split it"


CORES = (
    "platform/magnetar/protocol/ack_sets.py",
    "platform/magnetar/protocol/batch.py",
    "platform/magnetar/protocol/bookie_frames.py",
    "platform/magnetar/protocol/chunks.py",
    "platform/magnetar/protocol/entry.py",
    "platform/magnetar/protocol/frames.py",
    "platform/magnetar/protocol/ledger_entry.py",
    "platform/magnetar/protocol/message.py",
    "platform/magnetar/protocol/routing.py",
    "platform/magnetar/metadata/session_lease.py",
    "platform/magnetar/metadata/tree.py",
    "platform/magnetar/policies/effective.py",
    "platform/magnetar/bookie/record.py",
    "platform/magnetar/bookie/write_cache.py",
    "platform/magnetar/ledger/coverage.py",
    "platform/magnetar/ledger/fragment.py",
    "platform/magnetar/ledger/metadata.py",
    "platform/magnetar/ledger/quorum_read.py",
    "platform/magnetar/ledger/recovery.py",
    "platform/magnetar/ledger/write_pipeline.py",
    "platform/magnetar/ledger/replica_budget.py",
    "platform/magnetar/ledger/arrangement.py",
    "platform/magnetar/ledger/bookie_health.py",
    "platform/magnetar/ledger/slow_bookies.py",
    "platform/magnetar/autorecovery/copy_plan.py",
    "platform/magnetar/autorecovery/entry_ranges.py",
    "platform/magnetar/autorecovery/extents.py",
    "platform/magnetar/autorecovery/lost_bookies.py",
    "platform/magnetar/autorecovery/repair_schedule.py",
    "platform/magnetar/autorecovery/throttle.py",
    "platform/magnetar/autorecovery/verdicts.py",
    "platform/magnetar/managed_ledger/catch_up_cache.py",
    "platform/magnetar/managed_ledger/catch_up_pace.py",
    "platform/magnetar/managed_ledger/cursor_records.py",
    "platform/magnetar/managed_ledger/cursor_state.py",
    "platform/magnetar/managed_ledger/entry_cache.py",
    "platform/magnetar/managed_ledger/entry_ranges.py",
    "platform/magnetar/managed_ledger/ledger_list.py",
    "platform/magnetar/managed_ledger/records.py",
    "platform/magnetar/managed_ledger/retention.py",
    "platform/magnetar/client/acknowledgements.py",
    "platform/magnetar/client/nacks.py",
    "platform/magnetar/client/outbox.py",
    "platform/magnetar/broker/cluster/report.py",
    "platform/magnetar/broker/compaction/messages.py",
    "platform/magnetar/broker/compaction/state.py",
    "platform/magnetar/broker/compaction/survivors.py",
    "platform/magnetar/broker/deduplication.py",
    "platform/magnetar/broker/delays.py",
    "platform/magnetar/broker/dispatch",
    "platform/magnetar/broker/exclusivity.py",
    "platform/magnetar/broker/filters.py",
    "platform/magnetar/broker/held_positions.py",
    "platform/magnetar/broker/limits.py",
    "platform/magnetar/broker/namespaces/bundles.py",
    "platform/magnetar/broker/rates/dispatch_limit.py",
    "platform/magnetar/broker/rates/rate.py",
    "platform/magnetar/broker/rates/subscribe_limit.py",
    "platform/magnetar/broker/rates/token_bucket.py",
    "platform/magnetar/broker/sequence_ids.py",
    "platform/magnetar/broker/upkeep/backlog_quota.py",
    "platform/magnetar/broker/upkeep/chores.py",
    "platform/magnetar/broker/upkeep/inactivity.py",
    "platform/magnetar/broker/schema_rules",
    "runtime/magnetar/instance/delivery.py",
    "runtime/magnetar/instance/feed.py",
    "platform/magnetar/broker/transactions/coordinator_state.py",
    "platform/magnetar/broker/transactions/ended.py",
    "platform/magnetar/broker/transactions/pending_acks.py",
    "platform/magnetar/broker/transactions/txn_id.py",
    "platform/magnetar/broker/transactions/visibility.py",
    "runtime/magnetar/worker/launching.py",
    "runtime/magnetar/worker/plans.py",
    "runtime/magnetar/worker/scheduling.py",
    "runtime/magnetar/spark/offsets.py",
    "runtime/magnetar/spark/rows.py",
    "runtime/magnetar/spark/window_plan.py",
)
OUTSIDE = {"asyncio", "time", "random", "socket", "threading", "os"}


@pytest.mark.parametrize("core", CORES)
def test_a_core_knows_no_clock_no_dice_and_no_network(core: str) -> None:
    path = ROOT / core
    files = sources(path) if path.is_dir() else [path]
    assert files
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                assert not {alias.name.split(".")[0] for alias in node.names} & OUTSIDE, (
                    f"{file}:{node.lineno}"
                )
            elif isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[0] not in OUTSIDE, f"{file}:{node.lineno}"
            assert not isinstance(node, ast.AsyncFunctionDef | ast.Await), str(file)
