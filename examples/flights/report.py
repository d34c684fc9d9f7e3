"""Shows what the demo found, and whether it is right."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from flight_data import Expected, Totals, airline_names
from rich.console import Console
from rich.table import Table

AIRPORTS = {"EWR": "Newark", "JFK": "Kennedy", "LGA": "La Guardia"}


def show(console: Console, hours: list[Mapping[str, object]]) -> None:
    """Print the answer: by airport and hour of day, then by airline."""
    by_airport, by_airline = summarise(hours)
    table = Table(title="Mean departure delay in minutes, by local hour (late: more than 15 minutes)")
    table.add_column("airport")
    for name in ("5-8", "9-12", "13-16", "17-20", "21-23", "all day", "late"):
        table.add_column(name, justify="right")
    for origin in sorted({origin for origin, _ in by_airport}):
        cells = []
        for first, last in ((5, 8), (9, 12), (13, 16), (17, 20), (21, 23), (0, 23)):
            cells.append(_mean(_sum(by_airport, origin, first, last)))
        day = _sum(by_airport, origin, 0, 23)
        table.add_row(f"{origin} {AIRPORTS.get(origin, '')}", *cells, f"{100 * day.late / day.flights:.0f} %")
    console.print(table)

    names = airline_names()
    ranking = Table(title="Which airline runs late")
    for column in ("airline", "departures", "mean delay"):
        ranking.add_column(column, justify="left" if column == "airline" else "right")
    for carrier, total in sorted(by_airline.items(), key=lambda item: -item[1].minutes / item[1].flights):
        ranking.add_row(names.get(carrier, carrier), f"{total.flights:,}", _mean(total))
    console.print(ranking)


def plot(target: Path, hours: list[Mapping[str, object]]) -> None:
    """Save a picture of the same."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    by_airport, by_airline = summarise(hours)
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 5), layout="constrained")
    for origin in sorted({origin for origin, _ in by_airport}):
        points = sorted(
            (hour, total.minutes / total.flights) for (o, hour), total in by_airport.items() if o == origin
        )
        left.plot([hour for hour, _ in points], [delay for _, delay in points], marker="o", label=origin)
    left.set(title="Mean departure delay by airport", xlabel="scheduled local hour", ylabel="minutes")
    left.set_xticks(sorted({hour for _, hour in by_airport}))
    left.legend()
    names = airline_names()
    ranked = sorted(by_airline.items(), key=lambda item: item[1].minutes / item[1].flights)
    right.barh(
        [names.get(code, code) for code, _ in ranked], [total.minutes / total.flights for _, total in ranked]
    )
    right.set(title="Mean departure delay by airline", xlabel="minutes")
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=120)
    pyplot.close(figure)


def differences(
    expected: Expected,
    hours: list[Mapping[str, object]],
    stored: Mapping[str, Totals],
    dead_letters: int,
) -> list[str]:
    """Everything in which the platform's results differ from the plain computation; empty when all is right."""
    found: list[str] = []
    windows: dict[tuple[str, int], Totals] = {}
    for hour in hours:
        key = (str(hour["origin"]), int(str(hour["hour_ms"])))
        if key in windows:
            found.append(f"window {key} came twice")
        windows[key] = Totals(int(str(hour["flights"])), float(str(hour["minutes"])), int(str(hour["late"])))
    found += [f"window {key} is missing" for key in expected.by_hour.keys() - windows.keys()]
    found += [f"window {key} should not exist" for key in windows.keys() - expected.by_hour.keys()]
    for key in expected.by_hour.keys() & windows.keys():
        if windows[key] != expected.by_hour[key]:
            found.append(f"window {key}: {windows[key]}, the file says {expected.by_hour[key]}")
    for carrier in expected.by_airline.keys() | stored.keys():
        if stored.get(carrier) != expected.by_airline.get(carrier):
            found.append(
                f"SQLite, {carrier}: {stored.get(carrier)}, the file says {expected.by_airline.get(carrier)}"
            )
    if dead_letters != expected.unparsable:
        found.append(f"dead letters: {dead_letters}, the file has {expected.unparsable} rows without a delay")
    return found


def summarise(hours: list[Mapping[str, object]]) -> tuple[dict[tuple[str, int], Totals], dict[str, Totals]]:
    """Fold the hourly windows into hours of the day per airport, and into airlines."""
    by_airport: dict[tuple[str, int], Totals] = {}
    by_airline: dict[str, Totals] = {}
    for hour in hours:
        total = by_airport.setdefault((str(hour["origin"]), int(str(hour["local_hour"]))), Totals())
        total.flights += int(str(hour["flights"]))
        total.minutes += float(str(hour["minutes"]))
        total.late += int(str(hour["late"]))
        airlines = hour["airlines"]
        assert isinstance(airlines, dict)
        for carrier, part in airlines.items():
            airline = by_airline.setdefault(carrier, Totals())
            airline.flights += part["flights"]
            airline.minutes += part["minutes"]
    return by_airport, by_airline


def _sum(by_airport: Mapping[tuple[str, int], Totals], origin: str, first: int, last: int) -> Totals:
    total = Totals()
    for (airport, hour), part in by_airport.items():
        if airport == origin and first <= hour <= last:
            total.flights += part.flights
            total.minutes += part.minutes
            total.late += part.late
    return total


def _mean(total: Totals) -> str:
    return f"{total.minutes / total.flights:.1f}" if total.flights else ""
