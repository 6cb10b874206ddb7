"""Sinks, which write each batch exactly once, compared with Spark's own writers, which do not guarantee that.

./dev bench sinks [ROWS] [--only NAME ...] [--write]

Each side reads the same stream of Parquet files, two per micro-batch, and writes to the same system. Spark's JDBC,
file and Kafka writers append without the guarantee; upserts are compared with the usual recipe, a staging table
written by JDBC and merged. Jars come from Maven and serve only this comparison. PostgreSQL syncs to disk.
"""

import argparse
import os
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from uuid import uuid4

sys.path.append(str(Path(__file__).parents[1]))  # the repository root, for `support`

from _report import machine
from _spark import CONNECTOR
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

import headwater as hw
from headwater.sink import Batch, Sink, Stream
from headwater.spark.session.session import spark_session
from support.brokers import create_topic, start_headwater
from support.maven import jars
from support.postgres import PostgresServer

ROOT = Path(__file__).parents[1]

ROUNDS = 3
BATCHES = 4
FILES = 2
"""Files per batch, and so its partitions: Spark's writers open a connection for each."""
GOAL_APPEND, GOAL_UPSERT = 0.7, 1.0
PAGE = ROOT / "docs" / "benchmarks" / "sinks.md"
DRIVERS = (("org.postgresql", "postgresql", "42.7.4"), ("org.xerial", "sqlite-jdbc", "3.46.1.3"))

Write = Callable[[DataFrame, int], None]


@dataclass(frozen=True, slots=True)
class World:
    """The servers, files and session that both sides share; each measurement uses new names in them."""

    spark: SparkSession
    postgres: PostgresServer
    servers: str
    folder: Path
    rows: int

    @property
    def jdbc(self) -> dict[str, str]:
        url = f"jdbc:postgresql://127.0.0.1:{self.postgres.port}/postgres?reWriteBatchedInserts=true"
        return {"url": url, "user": "postgres", "driver": "org.postgresql.Driver", "batchsize": "10000"}


@dataclass(frozen=True, slots=True)
class Case:
    """A sink of Headwater and the Spark writer it is compared with; both are created for each round."""

    name: str
    ours: Callable[[World, str], Sink]
    theirs: Callable[[World, str], Write]
    against: str
    key: tuple[str, ...] = ()

    @property
    def goal(self) -> float:
        return GOAL_UPSERT if self.key else GOAL_APPEND


def through_jdbc(world: World, name: str) -> Write:
    return lambda rows, _: rows.write.format("jdbc").options(**world.jdbc, dbtable=name).mode("append").save()


def through_staging(world: World, name: str) -> Write:
    """Truncate a staging table, fill it by JDBC, merge it: the usual recommendation for upserts from Spark."""
    import psycopg

    columns = "id, product, customer, amount, at"
    with psycopg.connect(world.postgres.dsn) as db:
        db.execute(
            f"create table {name} (id bigint primary key, product text, customer text, amount double precision, "  # type: ignore[arg-type]
            "at timestamptz)"
        )
    staging = {**world.jdbc, "dbtable": f"{name}_staging", "truncate": "true"}
    sets = ", ".join(f"{column} = s.{column}" for column in columns.split(", ")[1:])
    values = ", ".join(f"s.{column}" for column in columns.split(", "))
    merge = (
        f"merge into {name} t using {name}_staging s on t.id = s.id when matched then update set {sets} "
        f"when not matched then insert ({columns}) values ({values})"
    )

    def write(rows: DataFrame, _: int) -> None:
        rows.write.format("jdbc").options(**staging).mode("overwrite").save()
        with psycopg.connect(world.postgres.dsn) as db:
            db.execute(merge)  # type: ignore[arg-type]

    return write


def through_sqlite_jdbc(world: World, name: str) -> Write:
    options = {"url": f"jdbc:sqlite:{world.folder / name}", "driver": "org.sqlite.JDBC", "dbtable": "results"}
    options["batchsize"] = "10000"
    with closing(sqlite3.connect(world.folder / name)) as db:  # Spark does not detect that it is missing.
        db.execute("create table results (id integer, product text, customer text, amount real, at text)")
    # SQLite allows one writer at a time.
    return lambda rows, _: rows.coalesce(1).write.format("jdbc").options(**options).mode("append").save()


def through_kafka(world: World, name: str) -> Write:
    create_topic(world.servers, name, 1)
    options = {"kafka.bootstrap.servers": world.servers, "topic": name}

    def write(rows: DataFrame, _: int) -> None:
        rows.selectExpr("to_json(struct(*)) as value").write.format("kafka").options(**options).save()

    return write


def to_files(world: World, name: str) -> Write:
    return lambda rows, _: rows.write.mode("append").parquet(str(world.folder / name))


CASES = (
    Case("PostgreSQL, append", lambda w, n: hw.Postgres(w.postgres.dsn, table=n), through_jdbc, "JDBC append"),
    Case(
        "PostgreSQL, upsert",
        lambda w, n: hw.Postgres(w.postgres.dsn, table=n),
        through_staging,
        "JDBC to a staging table, merge",
        ("id",),
    ),
    Case(
        "SQLite, append", lambda w, n: hw.Sqlite(w.folder / n, table="results"), through_sqlite_jdbc, "JDBC append"
    ),
    Case("Parquet, append", lambda w, n: hw.Parquet(w.folder / n), to_files, "Parquet append"),
    Case("Delta, append", lambda w, n: hw.Delta(w.folder / n), to_files, "Parquet append"),
    Case("the log", lambda w, n: hw.KafkaTopic(n, servers=w.servers), through_kafka, "the Kafka writer"),
)


def ours(query: str, sink: Sink, schema: DataFrame, key: tuple[str, ...]) -> tuple[Write, Callable[[], None]]:
    """Write as `headwater run` does: pass the micro-batch as Arrow to the sink, with its number."""
    stream = Stream(query=query, schema=to_arrow_schema(schema.schema, timezone="UTC"), key=key)
    writer = sink.open(stream)

    def write(rows: DataFrame, number: int) -> None:
        assert writer.write(Batch(run="bench", number=number, rows=rows.toArrow()))

    return write, writer.close


def measure(world: World, case: Case, side: str) -> float:
    """Return rows per second from the start of the query to its end."""
    name = f"results_{uuid4().hex[:12]}"
    source = world.folder / ("changes" if case.key else "rows")
    schema = world.spark.read.parquet(str(source))
    close: Callable[[], None] = lambda: None  # noqa: E731 - Spark's writers need no closing
    if side == "ours":
        write, close = ours(f"bench.{name}", case.ours(world, name), schema, case.key)
    else:
        write = case.theirs(world, name)
    rows = world.spark.readStream.schema(schema.schema).option("maxFilesPerTrigger", FILES).parquet(str(source))
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = rows.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
        began = time.perf_counter()
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        took = time.perf_counter() - began
        assert sum(progress.numInputRows for progress in query.recentProgress) == world.rows
    close()
    clean(world, name)
    return world.rows / took


def clean(world: World, name: str) -> None:
    """Delete the results, so that every measurement has the same free disk space."""
    import psycopg

    with psycopg.connect(world.postgres.dsn, autocommit=True) as db:
        for table in (name, f"{name}_staging"):
            db.execute(f"drop table if exists {table}")  # type: ignore[arg-type]
    for path in world.folder.glob(f"{name}*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def make_rows(spark: SparkSession, folder: Path, count: int) -> None:
    """Write the input of all sides: orders with new ids, and orders whose second half repeats ids of the first.

    An id occurs once in a batch: the recipe's merge would fail on duplicates.
    """
    size = count // BATCHES
    for name, distinct in (("rows", count), ("changes", count // 2)):
        for batch in range(BATCHES):
            rows = spark.range(batch * size, (batch + 1) * size).selectExpr(
                f"(id * 7919 % {size} + {batch * size}) % {distinct} as id",
                "concat('product-', id % 1000) as product",
                "concat('customer ', uuid()) as customer",
                "cast(id % 10000 as double) / 4 as amount",
                "timestamp_micros(1767225600000000 + id * 1000) as at",
            )
            rows.repartition(FILES).write.mode("append").parquet(str(folder / name))


@contextmanager
def world_of(count: int) -> Iterator[World]:
    found = [jars(f"spark-kafka-{CONNECTOR[0][2]}", CONNECTOR), jars("jdbc", DRIVERS)]
    paths = sorted(str(path) for folder in found for path in folder.glob("*.jar"))
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--jars {','.join(paths)} pyspark-shell"
    with tempfile.TemporaryDirectory() as name, PostgresServer(sync=True) as postgres:
        folder = Path(name)
        (folder / "broker").mkdir()
        broker = start_headwater(folder / "broker", "never")
        try:
            with spark_session("bench", log_file=folder / "spark.log") as spark:
                make_rows(spark, folder, count)
                yield World(spark, postgres, broker.servers, folder, count)
        finally:
            broker.stop()


def table(results: dict[str, tuple[Case, float, float]]) -> Iterator[str]:
    yield "| sink | Headwater, exactly once, rows/s | Spark, no guarantee, rows/s | writer | ratio | goal | |"
    yield "|---|--:|--:|---|--:|--:|---|"
    for case, mine, theirs in results.values():
        ratio = mine / theirs
        verdict = "ok" if round(ratio, 2) >= case.goal else "**missed**"
        figures = f"{mine:,.0f} | {theirs:,.0f} | {case.against} | {ratio:.2f} | ≥ {case.goal:g}"
        yield f"| {case.name} | {figures} | {verdict} |"


def page(results: dict[str, tuple[Case, float, float]], rows: int) -> str:
    lines = [
        "# Sinks",
        "",
        "The cost of exactly-once writes, measured by `./dev bench sinks --write`. Spark's writers append without",
        "that guarantee; the upsert is compared with the usual staging table and merge.",
        "",
        f"On {machine()}. {rows:,} rows of five columns in {BATCHES} micro-batches; medians of {ROUNDS} rounds in",
        "turns after a warm-up.",
        "",
        *table(results),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev bench sinks", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("rows", type=int, nargs="?", default=400_000)
    parser.add_argument("--only", nargs="+", default=[], help="cases whose name contains one of these")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    cases = [c for c in CASES if not options.only or any(part in c.name for part in options.only)]
    results = {}
    with world_of(options.rows) as world:
        for case in cases:
            rounds = [(measure(world, case, "ours"), measure(world, case, "theirs")) for _ in range(ROUNDS + 1)][
                1:
            ]
            mine, theirs = (median(side) for side in zip(*rounds, strict=True))
            results[case.name] = (case, mine, theirs)
            print(
                f"{case.name}: Headwater {mine:,.0f} rows/s, {mine / theirs:.2f}x {case.against} ({theirs:,.0f})",
                flush=True,
            )
    if options.write:
        PAGE.write_text(page(results, options.rows))


if __name__ == "__main__":
    main()
