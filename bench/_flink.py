"""Flink SQL for the benchmark of state, installed in a separate environment outside the project."""

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

VERSION = "2.3.0"
FOLDER = Path.home() / ".cache" / "headwater" / f"flink-{VERSION}"

PROGRAM = """
import json, sys, time
from pyflink.table import EnvironmentSettings, TableEnvironment
keys, events, kind = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
t = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
for key, value in {
    "parallelism.default": "2", "state.backend.type": "rocksdb", "taskmanager.numberOfTaskSlots": "2",
    "taskmanager.memory.process.size": "4g",
    "execution.checkpointing.interval": "10 s", "execution.checkpointing.dir": "file://" + sys.argv[4],
    "table.exec.mini-batch.enabled": "true", "table.exec.mini-batch.allow-latency": "2 s",
    "table.exec.mini-batch.size": "100000", "table.optimizer.agg-phase-strategy": "TWO_PHASE",
}.items():
    t.get_config().set(key, value)
t.execute_sql("create table sink (k string, v double) with ('connector' = 'blackhole')")
key = "'user-' || cast(id as string)"

def run(name, events):
    t.execute_sql(f'''create table {name} (
        id bigint, seq bigint, v double,
        ts as to_timestamp_ltz(seq * 60000 / {max(1, events // 4)}, 3), watermark for ts as ts
    ) with (
        'connector' = 'datagen', 'number-of-rows' = '{events}', 'rows-per-second' = '1000000000',
        'fields.id.min' = '0', 'fields.id.max' = '{keys - 1}',
        'fields.seq.kind' = 'sequence', 'fields.seq.start' = '0', 'fields.seq.end' = '{events - 1}'
    )''')
    if kind == "sum":
        query = f"insert into sink select {key}, sum(v) from {name} group by {key}"
    else:
        t.execute_sql(f"create temporary view {name}_keyed as select {key} as k, v, ts from {name}")
        query = f'''insert into sink select k, sum(v)
            from table(tumble(table {name}_keyed, descriptor(ts), interval '1' minute))
            group by k, window_start, window_end'''
    began = time.time()
    t.execute_sql(query).wait()
    return time.time() - began

start = run("first_rows", 1000)
took = run("all_rows", events)
print(json.dumps({"rate": events / took, "start_s": start}))
"""


def environment() -> str:
    """Return the Python of an environment with Flink; the first call installs it from PyPI, taking minutes."""
    python = FOLDER / "bin" / "python"
    if not (FOLDER / "ready").exists():
        print(f"installing apache-flink {VERSION} into {FOLDER}", file=sys.stderr, flush=True)
        venv.create(FOLDER, with_pip=True, clear=True)
        # Old dependencies of Flink need setuptools to be installed before them.
        for packages in (["setuptools<81", "wheel"], [f"apache-flink=={VERSION}"]):
            subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        (FOLDER / "ready").touch()
    return str(python)


def rows_per_second(python: str, keys: int, events: int, kind: str) -> float:
    """Measure Flink SQL with RocksDB and mini-batches, after a short query, so that startup does not count."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "flink_side.py"
        program.write_text(PROGRAM)
        command = [python, str(program), str(keys), str(events), kind, folder]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1100, check=False)
    if done.returncode:
        sys.exit(f"Flink failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return float(json.loads(done.stdout.strip().splitlines()[-1])["rate"])
