"""Conditional append: write a record only if no other record was written in the meantime (KAFKA-2260).

In a topic with `headwater.conditional.append=true`, a record may have a header with a condition:

    headwater.expected.offset    the end offset of the partition: nothing was appended since it was read
    headwater.expected.version   the offset of the last record with this record's key; -1 if there is none

The header's value is the number as text. If one condition of a batch is false, the whole batch is rejected with
error 55 (OPERATION_NOT_ATTEMPTED), which clients do not retry. Conditions refer to the log before the batch. Other
brokers and clients ignore the headers.

The versions are stored in `versions.db` next to the segments. They are derived: missing ones are read from the
log, and if the file is ahead of the log (which a power failure may have shortened), it is rebuilt.
"""

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from headwater.errors import ConflictError, InvalidError
from headwater.record import Record
from headwater.transmit.records.attributes import Buffer
from headwater.transmit.records.batch import decode_batch
from headwater.transmit.records.batch_header import BatchHeader

EXPECTED_OFFSET = "headwater.expected.offset"
EXPECTED_VERSION = "headwater.expected.version"
NO_VERSION = -1

BatchesFrom = Callable[[int], Iterable[tuple[BatchHeader, bytes]]]
"""Returns the batches of a log from an offset on."""

_SCHEMA = """
create table if not exists versions (key blob primary key, offset integer not null) without rowid;
create table if not exists reached (one integer primary key check (one = 1), offset integer not null);
"""


class ExpectationFailed(ConflictError):
    """A condition is false, because another record was written: read, decide and append again."""


class Expectations:
    """Checks the conditions of records for a partition, and keeps the versions of its keys. Not thread-safe."""

    def __init__(self, directory: Path, end_offset: int, batches_from: BatchesFrom) -> None:
        self._versions = KeyVersions(directory / "versions.db")
        if self._versions.reached > end_offset:
            self._versions.clear()
        for header, data in batches_from(self._versions.reached):
            self._versions.add(decode_batch(data), header.next_offset)

    def check(self, data: Buffer, headers: Sequence[BatchHeader], end_offset: int) -> list[Record]:
        """Raise ExpectationFailed unless all conditions of the records are true; return the records."""
        records = []
        at = 0
        for header in headers:
            records += decode_batch(data, at)
            at += header.size
        check_expectations(records, self._versions, end_offset)
        return records

    def add(self, records: Sequence[Record], base_offset: int) -> None:
        """Add the versions of records that were appended at an offset."""
        appended = [replace(record, offset=base_offset + n) for n, record in enumerate(records)]
        self._versions.add(appended, base_offset + len(records))

    def close(self) -> None:
        self._versions.close()


class KeyVersions:
    """The offset of the last record of each key of a partition. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("pragma journal_mode = wal")
        self._db.execute("pragma synchronous = off")  # derived: lost versions are read from the log again
        self._db.executescript(_SCHEMA)

    @property
    def reached(self) -> int:
        """The offset up to which the versions include the log."""
        found = self._db.execute("select offset from reached").fetchone()
        return 0 if found is None else int(found[0])

    def version(self, key: bytes) -> int:
        """Return the offset of the key's last record; NO_VERSION if it has none."""
        found = self._db.execute("select offset from versions where key = ?", (key,)).fetchone()
        return NO_VERSION if found is None else int(found[0])

    def add(self, records: Iterable[Record], reached: int) -> None:
        """Add the versions of appended records, the last of which is before the offset `reached`."""
        with self._db:
            self._db.execute("begin")
            self._db.executemany(
                "insert or replace into versions values (?, ?)",
                ((record.key, record.offset) for record in records if record.key is not None),
            )
            self._db.execute("insert or replace into reached values (1, ?)", (reached,))

    def clear(self) -> None:
        """Delete all versions."""
        self._db.executescript("delete from versions; delete from reached;")

    def close(self) -> None:
        self._db.close()


def check_expectations(records: Sequence[Record], versions: KeyVersions, end_offset: int) -> None:
    """Raise ExpectationFailed unless all conditions of the records are true."""
    for record in records:
        for name, value in record.headers:
            if name == EXPECTED_OFFSET:
                _check("the end of the partition", _number(name, value), end_offset)
            elif name == EXPECTED_VERSION:
                if record.key is None:
                    raise InvalidError(f"a record with header {name} has no key, so it has no version to compare")
                _check(f"the version of key {record.key!r}", _number(name, value), versions.version(record.key))


def _check(what: str, expected: int, found: int) -> None:
    if expected != found:
        raise ExpectationFailed(f"{what} is {found}, expected {expected}; read again and decide again")


def _number(name: str, value: bytes | None) -> int:
    try:
        return int((value or b"").decode("ascii"))
    except ValueError:
        raise InvalidError(f"header {name} is {value!r}, expected a whole number as text") from None
