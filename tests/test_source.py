"""The contract of sources, with a source and a log in memory: a crash at any step repeats and skips nothing."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from headwater.errors import HeadwaterError
from headwater.record import Record
from headwater.source import LostPositionError, Position, Reader, Source, SourceBatch, SourceRecord


@dataclass
class Database:
    """Transactions with growing numbers; acknowledged ones are discarded."""

    incarnation: str = "first"
    history: dict[int, list[str]] = field(default_factory=dict)
    discarded: int = 0

    def commit(self, *values: str) -> None:
        self.history[max(self.history, default=self.discarded) + 1] = list(values)


@dataclass(frozen=True)
class MemorySource:
    database: Database
    chunk: int = 2
    name: str = "shop"

    def open(self, at: Position | None) -> "MemoryReader":
        start = 0
        if at is not None:
            newest = Position(
                incarnation=self.database.incarnation, order=(max(self.database.history, default=0),)
            )
            if at.is_after(newest):
                raise LostPositionError(f"cannot continue at {at.order}: the source ends at {newest.order}")
            (start,) = at.order
        if start < self.database.discarded:
            raise LostPositionError(
                f"cannot continue at {start}: history before {self.database.discarded} is gone"
            )
        return MemoryReader(self.database, self.batches(start))

    def batches(self, start: int) -> Iterator[SourceBatch]:
        for number, values in sorted(self.database.history.items()):
            if number <= start:
                continue
            position = Position(incarnation=self.database.incarnation, order=(number,))
            chunks = [values[at : at + self.chunk] for at in range(0, len(values), self.chunk)] or [[]]
            for n, chunk in enumerate(chunks, 1):
                records = tuple(SourceRecord("orders", Record(value=value.encode())) for value in chunk)
                yield SourceBatch(records=records, position=position, ends_transaction=n == len(chunks))


@dataclass
class MemoryReader:
    database: Database
    remaining: Iterator[SourceBatch]
    is_finished: bool = False

    def read(self, *, timeout_s: float) -> SourceBatch | None:
        return next(self.remaining, None)

    def acknowledge(self, position: Position) -> None:
        (through,) = position.order
        self.database.discarded = max(self.database.discarded, through)
        for number in [number for number in self.database.history if number < through]:
            del self.database.history[number]

    def close(self) -> None:
        self.remaining = iter(())


class Crash(Exception):
    pass


@dataclass
class Log:
    """Commits records and position together; crashes when `steps` are used up."""

    values: list[str] = field(default_factory=list)
    position: bytes | None = None
    steps: int = 10**9

    def step(self) -> None:
        self.steps -= 1
        if self.steps < 0:
            raise Crash

    def capture(self, source: Source) -> None:
        reader: Reader = source.open(None if self.position is None else Position.decode(self.position))
        transaction: list[SourceRecord] = []
        try:
            while batch := reader.read(timeout_s=0):
                self.step()
                transaction += batch.records
                if not batch.ends_transaction:
                    continue
                values = [(record.record.value or b"").decode() for record in transaction]
                self.values, self.position = self.values + values, batch.position.encode()
                transaction = []
                self.step()
                reader.acknowledge(batch.position)
                self.step()
        finally:
            reader.close()


def new_database() -> Database:
    database = Database()
    for values in (["a"], ["b", "c", "d", "e", "f"], [], ["g", "h"]):
        database.commit(*values)
    return database


@pytest.mark.parametrize("crash_after", range(18))
def test_a_capture_that_crashes_at_any_step_resumes_exactly_once(crash_after: int) -> None:
    database, log = new_database(), Log(steps=crash_after)
    source = MemorySource(database)
    crashes = 0
    while True:
        try:
            log.capture(source)
            break
        except Crash:
            crashes += 1
            assert "".join(log.values) in ("", "a", "abcdef", "abcdefgh"), "only whole transactions are visible"
            log.steps = 10**9
    assert crashes == (crash_after < 14)
    assert "".join(log.values) == "abcdefgh"
    database.commit("i")
    log.steps = 10**9
    log.capture(source)
    log.capture(source)
    assert "".join(log.values) == "abcdefghi"


def test_a_batch_without_records_still_advances_the_position() -> None:
    database, log = Database(), Log()
    database.commit()
    log.capture(MemorySource(database))
    assert log.values == [] and database.discarded == 1


def test_a_lost_position_is_refused_and_never_skipped() -> None:
    database, log = new_database(), Log()
    log.capture(MemorySource(database))
    database.commit("i")
    position = Position.decode(log.position or b"")
    with pytest.raises(LostPositionError, match="is gone"):
        MemorySource(Database(history=database.history, discarded=9)).open(position)
    recreated = Database("second", {1: ["x"]})
    with pytest.raises(LostPositionError, match="history 'first' of the source, the other in 'second'"):
        MemorySource(recreated).open(position)
    restored = Database(history={1: ["a"]})
    with pytest.raises(LostPositionError, match="the source ends at"):
        MemorySource(restored).open(position)
    assert "".join(log.values) == "abcdefgh"
    assert issubclass(LostPositionError, HeadwaterError) and not LostPositionError.retriable


def test_a_position_survives_encoding_and_its_state_is_not_compared() -> None:
    position = Position(incarnation="system/slot", order=(2**63, 4), state='{"table": "orders"}')
    assert Position.decode(position.encode()) == position
    assert Position.decode(position.encode()).state == position.state
    later = Position(incarnation="system/slot", order=(2**63, 5))
    assert later.is_after(position) and not position.is_after(later) and not position.is_after(position)
