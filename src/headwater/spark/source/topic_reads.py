"""Reads a topic as a DataFrame: as a stream, all its records, or the records in ranges of offsets."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from headwater.app import Topic
from headwater.spark.source.decoding import COLUMNS
from headwater.spark.source.offsets import BOOTSTRAP, ISOLATION, READ_COMMITTED, Range, read_options, to_json
from headwater.spark.source.source import READER_COLUMN, HeadwaterSource, read_range
from headwater.store.pipelines.generations import Starting
from headwater.transmit.records.to_arrow import SCHEMA

OFFSETS_PER_TRIGGER_MAX = 500_000
"""Limits the memory of a batch; large enough to process a backlog at full speed."""

LOCAL_RECORDS_MAX = 100_000
"""Records that the driver reads itself: planning a read by workers takes longer."""


def read_stream(
    spark: SparkSession,
    topic: Topic,
    servers: str,
    *,
    every_partition: bool = False,
    wake_ups: Path | None = None,
    starting: Starting | None = None,
    left_out: Mapping[str, str] = MappingProxyType({}),
) -> DataFrame:
    """Read the records of a topic as a stream, from the first or from the offsets in `starting`."""
    offsets = (starting or {}).get(topic.name)
    _register_source(spark)
    return (
        spark.readStream.format("headwater")
        .options(**_selection(topic, servers))
        .option("startingOffsets", "earliest" if offsets is None else json.dumps({topic.name: offsets}))
        .option("maxOffsetsPerTrigger", str(OFFSETS_PER_TRIGGER_MAX))
        .option("everyPartition", str(every_partition).lower())
        .options(**({} if wake_ups is None else {"wakeUps": str(wake_ups)}))
        .options(**left_out)
        .load()
    )


def read_all(
    spark: SparkSession, topic: Topic, servers: str, *, left_out: Mapping[str, str] = MappingProxyType({})
) -> DataFrame:
    """Read the records that a topic has now."""
    _register_source(spark)
    options = {**_selection(topic, servers), **left_out}
    return spark.read.format("headwater").options(**options).load()


def read_part(
    spark: SparkSession, topic: Topic, servers: str, ranges: Sequence[Range], exclusions: Mapping[str, str]
) -> DataFrame:
    """Read the records of a topic in these ranges, at most one for each partition, without the excluded ones."""
    options = {**_selection(topic, servers), **exclusions}
    if sum(r.end - r.start for r in ranges) <= LOCAL_RECORDS_MAX:
        # Few records are read here: planning a read by workers takes longer than reading them.
        read = read_options(options, streaming=False)
        batches = [batch for r in ranges for batch in read_range(read, r)]
        # In one partition, as in a task: the function may process rows together.
        schema, columns = SCHEMA, COLUMNS
        if read.include_reader:
            schema, columns = (
                SCHEMA.append(pa.field(READER_COLUMN, pa.string())),
                f"{COLUMNS}, {READER_COLUMN} string",
            )
        return spark.createDataFrame(pa.Table.from_batches(batches, schema), columns).coalesce(1)
    _register_source(spark)
    del options["subscribe"]
    options["assign"] = json.dumps({topic.name: [r.partition.partition for r in ranges]})
    options["startingOffsets"] = json.dumps(to_json({r.partition: r.start for r in ranges}))
    options["endingOffsets"] = json.dumps(to_json({r.partition: r.end for r in ranges}))
    return spark.read.format("headwater").options(**options).load()


def _selection(topic: Topic, servers: str) -> dict[str, str]:
    # Records of aborted transactions are not read.
    return {BOOTSTRAP: servers, "subscribe": topic.name, ISOLATION: READ_COMMITTED}


def _register_source(spark: SparkSession) -> None:
    # Registered for each load: a source that Spark finds itself shares one map of environment variables between
    # all queries, and a starting query adds to it while another one serializes it ("Task not serializable").
    spark.dataSource.register(HeadwaterSource)
