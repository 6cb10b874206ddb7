"""`headwater sql` on DuckDB compared with the same statement on Spark, from process start to result.

./dev bench sql [ROUNDS]

A view of 100,000 rows is joined with a Parquet file of a million rows and a PostgreSQL table of 10,000 rows, and
grouped. Both sides read the view and PostgreSQL through Headwater, since neither has a driver for them on PyPI.
Spark runs on all cores. The benchmark prints the time to the first result of a new process, as at the command
line, and the time of a second run in the same process.
"""

import argparse
import multiprocessing
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

sys.path.append(str(Path(__file__).parents[1]))  # the repository root, for `support`

import pyarrow as pa
import pyarrow.parquet as pq
from _report import machine
from views import fill_view

from support.postgres import PostgresServer

SIDES = ("DuckDB", "Spark")
OPEN = ExitStack()
"""Keeps Spark's session open until the process ends."""
STATEMENT = """
    select c.city, k.kind, count(*) as orders, sum(o.amount) as amount
    from orders o join {parquet} k on k.id = o.id join {customers} c on c.id = o.id % 10000
    group by c.city, k.kind order by 1, 2
"""


def on_duckdb(folder: Path, dsn: str) -> int:
    from headwater.serve.sql import SqlSources, run_sql

    statement = STATEMENT.format(parquet=f"'{folder}/kinds.parquet'", customers="pg.customers")
    return len(run_sql(statement, SqlSources(store=folder / "views.db", postgres=dsn)).rows)


def on_spark(folder: Path, dsn: str) -> int:
    from pyspark.sql import SparkSession

    from headwater.serve.sql import SqlSources, _read_postgres
    from headwater.spark.session.session import spark_session
    from headwater.store.arrow import rows_as_arrow
    from headwater.store.views import ViewStore

    if SparkSession.getActiveSession() is None:
        OPEN.enter_context(spark_session("bench", log_file=folder / "spark.log"))
    spark = SparkSession.active()
    with closing(ViewStore(folder / "views.db", read_only=True)) as store:
        rows = rows_as_arrow(store.reading(), store.shape("orders"))
    spark.createDataFrame(rows).createOrReplaceTempView("orders")
    ((_, customers),) = _read_postgres([("pg", "customers")], SqlSources(postgres=dsn))
    spark.createDataFrame(customers).createOrReplaceTempView("customers")
    spark.read.parquet(f"{folder}/kinds.parquet").createOrReplaceTempView("kinds")
    return len(spark.sql(STATEMENT.format(parquet="kinds", customers="customers")).collect())


def run_twice(side: str, folder: Path, dsn: str, began: float, results: Connection) -> None:
    """Run the statement twice in this new process, and send both times."""
    run = {"DuckDB": on_duckdb, "Spark": on_spark}[side]
    count = run(folder, dsn)
    first = time.time() - began
    again = time.perf_counter()
    assert run(folder, dsn) == count
    results.send((first, time.perf_counter() - again, count))
    OPEN.close()


def measure(side: str, folder: Path, dsn: str) -> tuple[float, float]:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe()
    process = context.Process(target=run_twice, args=(side, folder, dsn, time.time(), sender))
    process.start()
    sender.close()  # this process's copy: if the other fails, `recv` raises EOFError
    first, second, count = receiver.recv()
    process.join()
    assert count == 20
    return first, second


def fill(folder: Path, dsn: str) -> None:
    import psycopg

    fill_view(folder / "views.db")
    kinds = [("leaf", "bean")[n % 2] for n in range(1_000_000)]
    pq.write_table(pa.table({"id": range(1_000_000), "kind": kinds}), folder / "kinds.parquet")
    with psycopg.connect(dsn) as db:
        db.execute("create table customers as select n as id, 'city ' || n / 2 % 10 as city "
                   "from generate_series(0, 9999) n")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev bench sql", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("rounds", type=int, nargs="?", default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, PostgresServer() as server:
        folder = Path(name)
        fill(folder, server.dsn)
        rounds = [{side: measure(side, folder, server.dsn) for side in SIDES} for _ in range(options.rounds)]
    print(f"On {machine()}; medians of {options.rounds} rounds.\n")
    print("| | first result, s | second result, s |\n|---|--:|--:|")
    for side in SIDES:
        first, second = (median(each[side][n] for each in rounds) for n in (0, 1))
        print(f"| {side} | {first:.2f} | {second:.2f} |")


if __name__ == "__main__":
    main()
