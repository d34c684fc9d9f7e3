"""The window of the demo: one airport, one hour. Runs on Spark, compiled from the function's `windowConfig`."""

LATE_MINUTES = 15


class HourlyDelays:
    def process(self, items, context):
        airlines = {}
        for flight in items:
            total = airlines.setdefault(flight["carrier"], {"flights": 0, "minutes": 0.0})
            total["flights"] += 1
            total["minutes"] += flight["dep_delay"]
        delays = [flight["dep_delay"] for flight in items]
        return {
            "origin": context.key,
            "hour_ms": context.start_ms,
            "local_hour": items[0]["local_hour"],
            "flights": len(delays),
            "minutes": sum(delays),
            "late": sum(delay > LATE_MINUTES for delay in delays),
            "airlines": airlines,
        }
