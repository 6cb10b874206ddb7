"""`headwater sql`: run a SQL statement over views, topics, Parquet files and PostgreSQL."""

from pathlib import Path
from typing import Annotated

import typer

from headwater.cli.options import DATA, DataOption, StoreOption
from headwater.cli.output import OutputFormat, OutputOption, print_json, print_table


def sql(
    statement: Annotated[str, typer.Argument(help="Statement in DuckDB's SQL.", show_default=False)],
    bootstrap_servers: Annotated[
        str, typer.Option("--bootstrap-servers", "-b", help="Address of the log, for topic.NAME.")
    ] = "127.0.0.1:9092",
    postgres: Annotated[
        str | None, typer.Option("--pg", help="Address of PostgreSQL, for pg.TABLE.", envvar="HEADWATER_PG")
    ] = None,
    data: DataOption = DATA,
    address: StoreOption = None,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Run a statement over views, topics (topic.NAME), PostgreSQL (pg.TABLE) and Parquet files ('out/*.parquet').

    Every table it names is read completely when it runs; nothing is written. Needs `pip install 'headwater[sql]'`.

    Example: headwater sql "select product, sum(revenue) from revenue group by all"

    Example: headwater sql "select c.name, r.revenue from revenue r join pg.customers c on c.id = r.customer"

    Example: headwater sql "select value->>'$.product' as product, count(*) from topic.orders group by all"
    """
    from headwater.serve.sql import SqlSources, run_sql
    from headwater.store.location import find_store

    location = find_store(data, address)
    store = None if isinstance(location, Path) and not location.exists() else location
    result = run_sql(statement, SqlSources(store=store, servers=bootstrap_servers, postgres=postgres))
    if output is OutputFormat.JSON:
        print_json({"columns": result.columns, "rows": result.rows})
    else:
        print_table(result.columns, result.rows)
