"""The sinks that `torture/sinks.py` can test: their expression in an app, their server, and their final rows."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from support.postgres import PostgresServer

TOTALS, RAW, CHANGES = "totals", "raw", "changes"
"""Prefixes of stream names: rows updated by key, rows without a key, and changes without a key."""

Row = dict[str, Any]


class Subject(Protocol):
    """A sink for two streams: `totals...`, updated by (key, window), and `raw...` without a key.

    A sink that keeps changes has a third stream: the changes of the totals, without a key.
    """

    has_server: bool
    """The sink has a server that can be killed."""
    keeps_changes: bool

    def expression(self, stream: str) -> str:
        """Return the expression for `to=` in the app's file, which has `import headwater as hw`."""

    def kill(self) -> None:
        """Send SIGKILL to the sink's server."""

    def start(self) -> None:
        """Restart the sink's server."""

    def rows(self, stream: str) -> list[Row]:
        """Return the final rows; a window's bounds are datetimes."""

    def close(self) -> None: ...


class Sqlite:
    """A SQLite file."""

    has_server = False
    keeps_changes = False

    def __init__(self, folder: Path, servers: str) -> None:
        self._path = folder / "results.db"

    def expression(self, stream: str) -> str:
        return f"hw.Sqlite({str(self._path)!r}, table={stream!r})"

    def kill(self) -> None: ...

    def start(self) -> None: ...

    def rows(self, stream: str) -> list[Row]:
        with closing(sqlite3.connect(self._path)) as db:
            db.row_factory = sqlite3.Row
            found = [dict(row) for row in db.execute(f"select * from {stream}")]
        return [{**row, "window": times(json.loads(row["window"]))} if "window" in row else row for row in found]

    def close(self) -> None: ...


class Postgres:
    """A PostgreSQL server for each run."""

    has_server = True
    keeps_changes = False

    def __init__(self, folder: Path, servers: str) -> None:
        self._server = PostgresServer()
        self._server.start()

    def expression(self, stream: str) -> str:
        return f"hw.Postgres({self._server.dsn!r}, table={stream!r})"

    def kill(self) -> None:
        self._server.kill()

    def start(self) -> None:
        self._server.start()

    def rows(self, stream: str) -> list[Row]:
        import psycopg
        from psycopg.rows import dict_row
        from psycopg.sql import SQL, Identifier

        with psycopg.connect(self._server.dsn, row_factory=dict_row) as db:
            found = db.execute(SQL("select * from {}").format(Identifier(stream))).fetchall()
        return [{**row, "window": times(row["window"])} if "window" in row else row for row in found]

    def close(self) -> None:
        self._server.close()


class Topic:
    """Topics in the run's own log, which is killed under the name "broker"."""

    has_server = False
    keeps_changes = True

    def __init__(self, folder: Path, servers: str) -> None:
        self._servers = servers

    def expression(self, stream: str) -> str:
        return f"hw.KafkaTopic({stream!r}, partitions=3)"

    def kill(self) -> None: ...

    def start(self) -> None: ...

    def rows(self, stream: str) -> list[Row]:
        found = committed_records(self._servers, stream)
        if not stream.startswith(TOTALS):
            return [json.loads(value) for _, value in found if value is not None]
        last = {key: json.loads(value) for key, value in dict(found).items() if value is not None}
        return [{**row, "window": times(row["window"])} for row in last.values()]

    def close(self) -> None: ...


class Parquet:
    """A folder of Parquet files with a manifest."""

    has_server = False
    keeps_changes = False

    def __init__(self, folder: Path, servers: str) -> None:
        self._folder = folder / "parquet"

    def expression(self, stream: str) -> str:
        return f"hw.Parquet({str(self._folder / stream)!r})"

    def kill(self) -> None: ...

    def start(self) -> None: ...

    def rows(self, stream: str) -> list[Row]:
        from headwater.sinks.parquet import read_parquet

        return list(read_parquet(self._folder / stream).to_pylist())

    def close(self) -> None: ...


class Delta:
    """Delta tables in a folder."""

    has_server = False
    keeps_changes = False

    def __init__(self, folder: Path, servers: str) -> None:
        self._folder = folder / "delta"

    def expression(self, stream: str) -> str:
        return f"hw.Delta({str(self._folder / stream)!r})"

    def kill(self) -> None: ...

    def start(self) -> None: ...

    def rows(self, stream: str) -> list[Row]:
        from deltalake import DeltaTable

        return list(DeltaTable(str(self._folder / stream)).to_pyarrow_table().to_pylist())

    def close(self) -> None: ...


def committed_records(servers: str, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    """Return keys and values of a topic's committed records."""
    from headwater.record import EARLIEST, LATEST, TopicPartition
    from headwater.transmit.client.client import Client
    from headwater.transmit.records.batch import decode_batch
    from headwater.transmit.records.batch_header import walk

    records = []
    with Client(servers, read_committed=True) as client:
        partitions = [TopicPartition(topic, n) for n in client.topics([topic])[topic].leaders]
        for partition in partitions:
            at, end = (client.offsets([partition], bound)[partition] for bound in (EARLIEST, LATEST))
            while at < end:
                data, at = client.read(partition, at)
                batches = [
                    decode_batch(data, position) for position, header in walk(data) if not header.is_control
                ]
                records += [(record.key, record.value) for batch in batches for record in batch]
    return records


def times(window: dict[str, str]) -> dict[str, datetime]:
    """Convert a window's bounds from text to datetimes in UTC."""
    return {name: datetime.fromisoformat(text).astimezone(UTC) for name, text in window.items()}


SUBJECTS: dict[str, Callable[[Path, str], Subject]] = {
    "sqlite": Sqlite,
    "postgres": Postgres,
    "topic": Topic,
    "parquet": Parquet,
    "delta": Delta,
}
"""By the names that `--sink` accepts; each is created with an empty folder and the address of the run's log."""
