"""A Spark session with the settings that measurements chose for micro-batches on few cores.

Shuffle partitions equal to the cores and no fork for every checkpoint file are the two that matter: together
they take a windowed micro-batch from seconds to a few hundred milliseconds (docs/decisions/, Spark).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from magnetar.spark.driver import announce_driver
from magnetar.spark.java import prepare_java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def start_session(
    name: str,
    work_dir: Path,
    *,
    master: str = "local[2]",
    partitions: int = 2,
    python_path: tuple[str, ...] = (),
    settings: dict[str, str] | None = None,
) -> SparkSession:
    """Start (or join) the session of this process.

    Args:
        name: shown in Spark's own pages and logs.
        work_dir: for the warehouse, temporary files and, where needed, the Java shim.
        master: any Spark master URL.
        partitions: of a shuffle; must not change over the life of a checkpoint.
        python_path: put before the module path of Spark's Python workers.
        settings: override anything chosen here.
    Raises:
        JavaMissing: no Java runtime.
    """
    os.environ["JAVA_HOME"] = str(prepare_java_home(work_dir))
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    announce_driver()
    inherited = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*python_path, *inherited]))

    from pyspark.sql import SparkSession

    chosen = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "768m",
        "spark.driver.extraJavaOptions": "-Djdk.lang.Process.launchMechanism=VFORK -XX:+UseSerialGC",
        "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
        "spark.local.dir": str(work_dir / "local"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(partitions),
        "spark.sql.streaming.minBatchesToRetain": "10",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.warehouse.dir": str(work_dir / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **(settings or {}),
    }
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
