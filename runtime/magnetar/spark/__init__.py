"""Magnetar and Spark: read topics into Structured Streaming, write back effectively once, run windows.

`topic_source` and `topic_sink` register as the format "pulsar", so any Spark program can use them:

    from magnetar.spark import register
    register(spark)
    spark.readStream.format("pulsar").option("service.url", url).option("topic", "flights").load()

`window` is the process the function worker starts for a function with a `windowConfig`. This room imports
`magnetar.client`, `magnetar.functions` and, at run time, pyspark; nothing imports it but the worker's launcher.
Start reading at `window_query.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make the format "pulsar" known to `spark`, for reading and writing, batch and streaming."""
    from magnetar.spark.data_source import PulsarDataSource

    spark.dataSource.register(PulsarDataSource)
