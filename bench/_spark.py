"""A Spark session with both sources: Headwater's, and Spark's Kafka connector on the JVM."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from headwater.spark.session.session import spark_session
from support.maven import jars

OURS, THEIRS = "headwater", "kafka"
CONNECTOR = (  # Maven Central has no connector for Spark 4.3; these versions work with it.
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.12.1"),
)


@contextmanager
def session_with_connector(name: str) -> Iterator[SparkSession]:
    """Open a local session with the connector's jars on the class path."""
    folder = jars(f"spark-kafka-{CONNECTOR[0][2]}", CONNECTOR)
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--jars {','.join(map(str, sorted(folder.glob('*.jar'))))} pyspark-shell"
    with (
        tempfile.TemporaryDirectory() as logs,
        spark_session(name, log_file=Path(logs) / "spark.log") as spark,
    ):
        yield spark


def stream(spark: SparkSession, source: str, servers: str, topic: str, **options: str) -> DataFrame:
    """Read a topic from its start with one of the sources."""
    reader = spark.readStream.format(source).option("kafka.bootstrap.servers", servers).option("subscribe", topic)
    return reader.option("startingOffsets", "earliest").options(**options).load()
