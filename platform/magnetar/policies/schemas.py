"""How a topic's schemas may change."""

from __future__ import annotations

from enum import StrEnum


class SchemaCompatibilityStrategy(StrEnum):
    """Which new schema a topic takes."""

    UNDEFINED = "UNDEFINED"
    """Whatever the level above says."""
    ALWAYS_INCOMPATIBLE = "ALWAYS_INCOMPATIBLE"
    ALWAYS_COMPATIBLE = "ALWAYS_COMPATIBLE"
    BACKWARD = "BACKWARD"
    FORWARD = "FORWARD"
    FULL = "FULL"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"


class SchemaAutoUpdateStrategy(StrEnum):
    """The older way to say it, still read and written by older tools."""

    AutoUpdateDisabled = "AutoUpdateDisabled"
    Backward = "Backward"
    Forward = "Forward"
    Full = "Full"
    AlwaysCompatible = "AlwaysCompatible"
    BackwardTransitive = "BackwardTransitive"
    ForwardTransitive = "ForwardTransitive"
    FullTransitive = "FullTransitive"
