"""What delays or filters messages on their way to consumers."""

from __future__ import annotations

from magnetar.policies.model import CamelModel, Int64


class DelayedDelivery(CamelModel):
    """Whether producers may ask for late delivery, how precise and how late it may be."""

    tick_time: Int64 = 1000
    """Milliseconds."""
    active: bool = False
    max_delivery_delay_in_millis: Int64 = 0
    """0: no limit."""


class EntryFilters(CamelModel):
    """Plug-ins a message must pass, by name, with commas between."""

    entry_filter_names: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for part in self.entry_filter_names.split(",") if (name := part.strip()))
