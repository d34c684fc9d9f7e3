"""The function of the demo: validate a departure, join its airline and the weather of its hour.

Written against the official SDK and nothing else: it runs on Apache Pulsar as it is. What it raises becomes
the reason of a dead letter. The package brings its two small tables along.
"""

import csv
import io
import json
import pkgutil

from pulsar import Function

WEATHER = ("temp", "wind_speed", "precip", "visib")


def table(name):
    data = pkgutil.get_data(__name__, name)
    if data is None:
        raise FileNotFoundError(f"the package has no {name}")
    return csv.DictReader(io.StringIO(data.decode("utf-8")))


def number(text):
    return None if text in (None, "", "NA") else float(text)


class JoinFlight(Function):
    def __init__(self):
        self.airlines = {row["carrier"]: row["name"] for row in table("airlines.csv")}
        self.weather = {
            (row["origin"], row["time_hour"]): {name: number(row[name]) for name in WEATHER}
            for row in table("weather.csv")
        }

    def process(self, input, context):
        flight = json.loads(input)
        origin, hour, carrier = flight["origin"], flight["time_hour"], flight["carrier"]
        name = f"{carrier}{flight['flight']} from {origin} at {hour}"
        if carrier not in self.airlines:
            raise ValueError(f"{name}: unknown airline '{carrier}'")
        delay = number(flight["dep_delay"])
        if delay is None:
            raise ValueError(f"{name}: no departure delay, it never left")
        weather = self.weather.get((origin, hour)) or dict.fromkeys(WEATHER)
        joined = {
            "flight_id": f"{carrier}{flight['flight']}-{origin}-{hour}",
            "origin": origin,
            "dest": flight["dest"],
            "carrier": carrier,
            "airline": self.airlines[carrier],
            "time_hour": hour,
            "local_hour": int(number(flight["hour"])),
            "dep_delay": delay,
            **weather,
        }
        return json.dumps(joined, separators=(",", ":"))
