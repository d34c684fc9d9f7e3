"""The format "pulsar": where Spark meets a topic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

from magnetar.spark.options import SinkOptions, SourceOptions
from magnetar.spark.rows import SCHEMA

if TYPE_CHECKING:
    from magnetar.spark.topic_sink import TopicBatchWriter, TopicStreamWriter
    from magnetar.spark.topic_source import TopicBatchReader, TopicStreamReader


class PulsarDataSource(DataSource):
    """Topics as streaming and batch sources and sinks. Options: `magnetar.spark.options`."""

    @classmethod
    def name(cls) -> str:
        return "pulsar"

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: Any) -> TopicStreamReader:  # noqa: N802  # the name is Spark's
        from magnetar.spark.topic_source import TopicStreamReader

        return TopicStreamReader(SourceOptions.parse(self._options()))

    def reader(self, schema: Any) -> TopicBatchReader:
        from magnetar.spark.topic_source import TopicBatchReader

        return TopicBatchReader(SourceOptions.parse(self._options()))

    def streamWriter(self, schema: Any, overwrite: bool) -> TopicStreamWriter:  # noqa: N802  # the name is Spark's
        from magnetar.spark.topic_sink import TopicStreamWriter

        return TopicStreamWriter(SinkOptions.parse(self._options()))

    def writer(self, schema: Any, overwrite: bool) -> TopicBatchWriter:
        from magnetar.spark.topic_sink import TopicBatchWriter

        return TopicBatchWriter(SinkOptions.parse(self._options()))

    def _options(self) -> Mapping[str, str]:
        return dict(self.options.items())
