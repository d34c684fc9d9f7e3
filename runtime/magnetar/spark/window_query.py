"""Compile a window to a Structured Streaming query.

    topics → event time, watermark → group by key and window → the user's function, or SQL aggregates → topic

The end of terminated topics arrives as one row with an empty `__topic` (see `SourceOptions.report_end`). It is
given a time in the far future: that moves the watermark past every open window, so that all of them close,
while the row's own window never does.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar.spark import register
from magnetar.spark.user_window import RESULT_SCHEMA, UserWindow, extract_timestamp, run_windows
from magnetar.spark.window_plan import WindowPlan

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FAR_FUTURE = "9000-01-01 00:00:00"
OBSERVED = "magnetar"


def start_query(
    spark: SparkSession,
    plan: WindowPlan,
    *,
    service_url: str,
    admin_url: str,
    checkpoint: Path,
    import_paths: tuple[str, ...],
    producer_prefix: str,
) -> StreamingQuery:
    """Compile `plan` and set it going.

    Args:
        checkpoint: Spark's directory for offsets, state and commits; reused at a restart.
        import_paths: where the user's code lies.
        producer_prefix: the checkpoint's own: it names the producers by which the broker knows a replay.
    """
    register(spark)
    source = (
        spark.readStream.format("pulsar")
        .option("service.url", service_url)
        .option("admin.url", admin_url)
        .option("topics", ",".join(plan.inputs))
        .option("startingOffsets", "earliest" if plan.earliest else "latest")
        .option("predefinedSubscription", plan.subscription)
        .option("reportEnd", "true")
        .load()
    )
    results = compile_window(source, plan, import_paths)
    return (
        results.writeStream.format("pulsar")
        .option("service.url", service_url)
        .option("topic", plan.output or "")
        .option("producerName", producer_prefix)
        .option("checkpointLocation", str(checkpoint))
        .outputMode("append")
        .trigger(processingTime=f"{plan.trigger_ms} milliseconds")
        .start()
    )


def compile_window(source: DataFrame, plan: WindowPlan, import_paths: tuple[str, ...]) -> DataFrame:
    """The rows that go to the output topic, from rows as the format "pulsar" reads them."""
    from pyspark.sql import functions as f

    is_end = f.col("__topic") == ""
    far_future = f.lit(FAR_FUTURE).cast("timestamp")
    events = (
        source.select(
            f.col("value"),
            f.col("__key").cast("string").alias("key"),
            is_end.alias("is_end"),
            f.when(is_end, far_future).otherwise(_event_time(plan, import_paths)).alias("event_time"),
        )
        .observe(
            OBSERVED,
            f.count(f.when(~f.col("is_end"), 1)).alias("rows"),
            f.count(f.when(f.col("event_time").isNull(), 1)).alias("rows_without_time"),
        )
        .withWatermark("event_time", f"{plan.max_lag_ms} milliseconds")
    )
    span = f.window("event_time", f"{plan.length_ms} milliseconds", f"{plan.slide_ms} milliseconds")
    grouped = events.groupBy(span, "key")
    if plan.aggregates:
        return _aggregate(events, plan, span)
    items = f.array_sort(f.collect_list(f.struct("event_time", "value")))
    closed = grouped.agg(items.alias("items")).select(
        "key", *_bounds(), f.transform("items", lambda item: item["value"]).alias("items")
    )
    function = UserWindow(plan.class_name, import_paths, dict(plan.user_config))
    return closed.mapInArrow(partial(run_windows, function), RESULT_SCHEMA)


def _aggregate(events: DataFrame, plan: WindowPlan, span: Column) -> DataFrame:
    """No user code: Spark's own incremental aggregates over the payload's JSON fields."""
    from pyspark.sql import functions as f

    fields = events.withColumn("fields", f.from_json(f.col("value").cast("string"), plan.schema or ""))
    flat = fields.select("key", "event_time", "fields.*")
    totals = flat.groupBy(span, "key").agg(*(f.expr(text).alias(name) for name, text in plan.aggregates))
    named = totals.select("key", *_bounds(), *(name for name, _ in plan.aggregates))
    body = f.to_json(f.struct("key", "start_ms", "end_ms", *(name for name, _ in plan.aggregates)))
    return named.select(
        body.cast("binary").alias("value"),
        f.col("key").cast("binary").alias("__key"),
        f.timestamp_millis(f.col("end_ms") - 1).alias("__eventTime"),
        f.create_map(
            f.lit("window_start_ms"),
            f.col("start_ms").cast("string"),
            f.lit("window_end_ms"),
            f.col("end_ms").cast("string"),
        ).alias("__messageProperties"),
    )


def _bounds() -> tuple[Column, Column]:
    from pyspark.sql import functions as f

    return (
        f.unix_millis(f.col("window.start")).alias("start_ms"),
        f.unix_millis(f.col("window.end")).alias("end_ms"),
    )


def _event_time(plan: WindowPlan, import_paths: tuple[str, ...]) -> Column:
    """The time of a row: null where its payload names none, so that the row is counted as dropped."""
    from pyspark.sql import functions as f

    if plan.timestamp is None:
        return f.coalesce(f.col("__eventTime"), f.col("__publishTime"))
    field = plan.timestamp_field
    if field is not None:
        text = f.get_json_object(f.col("value").cast("string"), f"$['{field}']")
        return f.coalesce(f.timestamp_millis(text.try_cast("bigint")), text.try_cast("timestamp"))
    moment: Any = f.udf(partial(extract_timestamp, plan.timestamp, import_paths), "bigint")
    return f.timestamp_millis(moment(f.col("value")))
