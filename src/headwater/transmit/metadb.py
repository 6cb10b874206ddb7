"""Connections to `meta.db`, the SQLite file for everything the broker stores besides records.

The catalog, the groups and the transactions each have tables in it. Every write goes through `writing`, which
turns the errors of SQLite into ours. Used from the broker's thread only.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from headwater.errors import CorruptError, UnavailableError

_BUSY_S = 30.0


def connect(path: Path, schema: str, *, synchronous: Literal["full", "normal"]) -> sqlite3.Connection:
    """Open the file and create missing tables.

    With `full`, a commit returns when it is on disk. With `normal`, it survives a crash of the process at once,
    and a power failure after about a second.
    """
    # embedded.Broker opens the file in one thread and uses it in another.
    db = sqlite3.connect(path, isolation_level=None, timeout=_BUSY_S, check_same_thread=False)
    try:
        db.execute("pragma journal_mode = wal")
        db.execute(f"pragma synchronous = {synchronous}")
        db.executescript(schema)
    except sqlite3.OperationalError as error:
        db.close()
        raise UnavailableError(f"cannot open {str(path)!r}: {error}") from error
    except sqlite3.DatabaseError as error:
        db.close()
        raise CorruptError(f"cannot open {str(path)!r}: {error}") from error
    return db


@contextmanager
def writing(db: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Run the block as one transaction; raise UnavailableError if SQLite cannot write, as on a full disk."""
    try:
        with db:
            db.execute("begin immediate")
            yield db
    except sqlite3.OperationalError as error:
        raise UnavailableError(f"cannot write to meta.db: {error}") from error
