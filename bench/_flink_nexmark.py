"""Run Nexmark's queries in Flink SQL over the same files, with the Python of Flink's environment (see `_flink`).

python _flink_nexmark.py FOLDER SMALL QUERIES STATE      prints a line of JSON for each query

Each query runs over the few events in SMALL and over those in FOLDER, so that the startup time, which is part of
both, can be subtracted. A run before these takes the longer first start; it does not count.
"""

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

SCHEMAS = {
    "person": "id bigint, name string, email string, credit_card string, city string, state string, "
    "date_time timestamp(3), extra string",
    "auction": "id bigint, item_name string, description string, initial_bid bigint, reserve bigint, "
    "date_time timestamp(3), expires timestamp(3), seller bigint, category bigint, extra string",
    "bid": "auction bigint, bidder bigint, price bigint, channel string, url string, date_time timestamp(3), "
    "extra string",
}

SETTINGS = {
    "parallelism.default": "2",
    "taskmanager.numberOfTaskSlots": "2",
    "taskmanager.memory.process.size": "4g",
    "state.backend.type": "rocksdb",
    "execution.checkpointing.interval": "10 s",
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "2 s",
    "table.exec.mini-batch.size": "50000",
    "table.optimizer.distinct-agg.split.enabled": "true",
    "table.local-time-zone": "UTC",
}


def statements() -> dict[str, str]:
    """Return the views and queries of the SQL file by name."""
    text = Path(__file__).with_suffix(".sql").read_text()
    found = re.findall(r"^-- (view \w+|q\d+)\n(.*?)(?=^-- |\Z)", text, re.DOTALL | re.MULTILINE)
    return {name: query.strip() for name, query in found}


def tables(folder: str, state: str) -> Any:
    """Return an environment whose tables are the files of a folder."""
    from pyflink.table import EnvironmentSettings, TableEnvironment

    t = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    for key, value in {**SETTINGS, "execution.checkpointing.dir": f"file://{state}"}.items():
        t.get_config().set(key, value)
    for name, schema in SCHEMAS.items():
        t.execute_sql(
            f"create table {name} ({schema}, watermark for date_time as date_time - interval '4' second) "
            f"with ('connector' = 'filesystem', 'path' = 'file://{folder}/{name}s', 'format' = 'csv')"
        )
    t.execute_sql(
        "create table side_input (key bigint, `value` string) with ('connector' = 'filesystem', "
        f"'path' = 'file://{folder}/side_input_bare.csv', 'format' = 'csv')"
    )
    for name, query in statements().items():
        if name.startswith("view "):
            t.execute_sql(f"create temporary {name} as {query}")
    t.execute_sql(
        "create table files (auction bigint, bidder bigint, price bigint, date_time timestamp(3), extra string, "
        "dt string, hm string) partitioned by (dt, hm) with ('connector' = 'filesystem', "
        f"'path' = 'file://{state}/out', 'format' = 'csv')"
    )
    return t


def run(t: Any, name: str) -> float:
    """Run a query to its end and return the seconds it took."""
    from pyflink.table import TableDescriptor

    query = statements()[name]
    began = time.time()
    if name == "q10":
        t.execute_sql(f"insert into files {query}").wait()
    else:
        t.sql_query(query).execute_insert(TableDescriptor.for_connector("blackhole").build()).wait()
    return time.time() - began


def main() -> None:
    folder, small, names, state = sys.argv[1:]
    for name in names.split(","):
        found = {"query": name}
        try:
            for part, path in (("first_s", small), ("small_s", small), ("all_s", folder)):
                found[part] = run(tables(path, state), name)
        except Exception as error:
            found["error"] = str(error).strip().splitlines()[-1][:300]
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
