"""Servers, processes and fault injectors that tests, `torture/` and `bench/` share; `src/` imports none of them.

- `brokers`: starts Headwater's broker and Apache Kafka, each in its own process, and creates topics on them.
- `restartable_brokers`: the commands that start the same two brokers again on the same address and data.
- `postgres`: a PostgreSQL server that can be killed and restarted.
- `spark_cluster`: a Spark master and worker whose executors can be killed.
- `processes`: descendants of a process, free ports, options for JVMs that are soon killed.
- `tcp_proxy`: a TCP proxy that cuts its connections after a number of bytes.
- `disk`: a disk that loses power: it drops writes that were not synced, at a chosen operation.
- `maven`: downloads jars with Maven and caches them.

The repository root must be on the import path: pytest sets it in `pyproject.toml`, `./dev torture` runs modules
from the root, and each script in `bench/` that needs this folder appends the root to `sys.path`.
"""
