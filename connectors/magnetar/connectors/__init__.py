"""Connectors: what brings data into topics (sources) and carries it out (sinks).

Start with `interfaces.py`: `Record`, `Source`, `Sink` and the contexts they are given. `registry.py` names the
connectors that come with Magnetar (`builtin://file`, `builtin://sql`) and describes their settings; each of them
lives in a package of its own (`file/`, `sql/`).

This room may import the standard library and `magnetar.functions`; nothing of the platform, so that a connector is
written and tested without a server. A third-party library (SQLAlchemy, ...) is imported by the connector that needs
it, when it is opened: importing `magnetar.connectors` costs nothing and brings nothing along.
"""
