"""The contract of sinks as a suite of tests. Every built-in sink passes it, and a sink of your own should.

    from headwater.testing import Destination, SinkContract

    class TestMySink(SinkContract):
        @pytest.fixture
        def new_destination(self, tmp_path):
            def make():
                sink = MySink(tmp_path / str(uuid4()))
                return Destination(sink=sink, read=lambda stream: rows_in(sink))
            return make

`new_destination` returns a function that creates an empty destination at each call. Class attributes declare what
a sink does not support; the suite then checks that the sink raises an error instead. Needs pytest and hypothesis.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.errors import ConflictError, HeadwaterError, InvalidError
from headwater.sink import Batch, Rehearsing, Sink, Stream
from headwater.testing.process_kill import writes_with_kill
from headwater.testing.sample_batches import KEYED, Change, batch_of, signs, stream_of, table
from headwater.testing.sample_values import VALUES, canonical, json_form

__all__ = ["SinkContract", "Destination", "VALUES", "json_form", "batch_of", "stream_of", "table"]

ROUNDS = 8
"""Number of races between two writers that open at the same time."""


@dataclass(frozen=True, kw_only=True)
class Destination:
    """An empty destination: a sink, and functions by which a test examines it.

    `read` returns the rows that the destination has for a stream, with values as Arrow's `to_pylist` returns them;
    no rows before the first write. `interruptions` yields functions that write a batch, each of which fails at a
    different step of the write. Without it, the suite kills a writing process at random times; the sink must then
    be picklable.
    """

    sink: Sink
    read: Callable[[Stream], list[dict[str, Any]]]
    interruptions: Callable[[Stream], Iterable[Callable[[Batch], None]]] | None = None


NewDestination = Callable[[], Destination]

CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c", ""]), st.none() | st.integers(-9, 9), st.sampled_from([1, 1, 1, -1])
    ),
    min_size=1,
    max_size=6,
)
STEPS = st.lists(
    st.tuples(CHANGES, st.sampled_from(["", "", "again", "reopen", "old", "new run"]), st.integers(1, 3)),
    max_size=8,
)
"""Batches, the action after each, and the increment of the batch number."""

_settings = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,  # `new_destination` creates one for every example.
        HealthCheck.differing_executors,  # The class of each sink runs the same test, as intended.
        HealthCheck.too_slow,
    ],
)


class SinkContract:
    """The tests that every sink must pass. Inherit from it, and define the fixture `new_destination`."""

    keyed = True
    """Accepts streams with a key; else `open` raises an InvalidError."""
    keyless = True
    """Accepts streams without a key; else `open` raises an InvalidError."""
    takes_back_without_key = False
    """Accepts changes without a key, and deletes one row for each retraction; else `open` raises an error."""
    fresh_start = True
    """The first batch of a new run replaces the rows of the previous run; else `write` raises a ConflictError."""
    typed = True
    """Knows the types of existing columns: `open` raises an error for a stream with other types."""
    null_keys = True
    """A key may be null; else `write` raises an InvalidError for such a batch and changes nothing."""
    types: tuple[str, ...] = tuple(VALUES)
    """The column types it accepts; for any other, `open` raises an InvalidError that names the column."""
    key_types: tuple[str, ...] = ("string", "bigint", "timestamp", "date", "decimal", "boolean", "struct")
    """The column types it accepts for keys."""
    kills = 4
    """Number of writing processes to kill if the destination has no `interruptions`."""

    @pytest.fixture
    def new_destination(self, request: pytest.FixtureRequest) -> NewDestination:
        """Return a function that creates an empty destination. Override it."""
        if hasattr(self, "new_place"):  # the former name of this fixture
            return cast(NewDestination, request.getfixturevalue("new_place"))
        raise NotImplementedError(
            "define the fixture `new_destination`, which returns a function that creates an empty `Destination`"
        )

    def kept(self, value: Any, kind: pa.DataType) -> Any:
        """Return what reading yields for a value (not null) that was written; the value itself by default."""
        return value

    def holds(self, destination: Destination, stream: Stream, rows: Iterable[tuple[Any, ...]]) -> None:
        """Check that the destination has these rows, and no others."""
        found, expected = rows_found(destination, stream), rows_expected(self, stream, rows)
        missing, unexpected = (sorted(c.elements(), key=repr) for c in (expected - found, found - expected))
        assert found == expected, f"missing: {missing}, unexpected: {unexpected}"

    # -- rows and changes -------------------------------------------------------------------------------------

    def test_rows_without_a_key_are_appended(self, new_destination: NewDestination) -> None:
        destination, stream = new_destination(), stream_of()
        if not self.keyless:
            check_open_fails(destination, stream)
            return
        with closing(destination.sink.open(stream)) as writer:
            assert writer.write(batch_of(0, [("a", 1, 1), ("a", 1, 1)], signed=False))
            assert writer.write(batch_of(1, [("a", 2, 1), (None, None, 1)], signed=False))
        self.holds(destination, stream, [("a", 1), ("a", 1), ("a", 2), (None, None)])

    def test_a_row_replaces_the_one_of_its_key(self, new_destination: NewDestination) -> None:
        destination, stream = new_destination(), stream_of(key="k")
        if not self.keyed:
            check_open_fails(destination, stream)
            return
        with closing(destination.sink.open(stream)) as writer:
            writer.write(batch_of(0, [("a", 1, 1), ("b", 2, 1), ("a", 3, 1)], signed=False))
            self.holds(destination, stream, [("a", 3), ("b", 2)])
            writer.write(batch_of(1, [("b", None, 1), ("c", 5, 1)], signed=False))
        self.holds(destination, stream, [("a", 3), ("b", None), ("c", 5)])

    def test_a_retracted_row_is_deleted(self, new_destination: NewDestination) -> None:
        if not self.keyed:
            return
        destination, stream = new_destination(), stream_of(key="k", changes=True)
        with closing(destination.sink.open(stream)) as writer:
            writer.write(batch_of(0, [("a", 1, 1), ("b", 2, 1), ("c", 3, 1)]))
            writer.write(batch_of(1, [("a", 1, -1), ("b", 2, -1), ("b", 4, 1), ("d", 5, 1), ("d", 5, -1)]))
            self.holds(destination, stream, [("b", 4), ("c", 3)])
            writer.write(batch_of(2, [("b", 4, -1), ("c", 3, -1)]))
            self.holds(destination, stream, [])
            writer.write(batch_of(3, [("a", 6, 1)]))
        self.holds(destination, stream, [("a", 6)])

    def test_changes_without_a_key(self, new_destination: NewDestination) -> None:
        destination, stream = new_destination(), stream_of(changes=True)
        if not (self.keyless and self.takes_back_without_key):
            check_open_fails(destination, stream)
            return
        with closing(destination.sink.open(stream)) as writer:
            writer.write(batch_of(0, [("a", 1, 1), ("a", 1, 1), ("b", 2, 1)]))
            writer.write(batch_of(1, [("a", 1, -1), ("b", 3, 1), ("b", 3, -1)]))
        self.holds(destination, stream, [("a", 1), ("b", 2)])

    def test_a_key_of_several_columns(self, new_destination: NewDestination) -> None:
        if not self.keyed:
            return
        schema = pa.schema({"k": pa.string(), "n": pa.int32(), "v": pa.int64()})
        destination, stream = new_destination(), Stream(query="app.q", schema=schema, key=("k", "n"), changes=True)
        rows = [("a", 1, 1), ("a", 2, 2), ("b", 1, 3), ("a", 1, 4), ("a", 2, 2)]
        with closing(destination.sink.open(stream)) as writer:
            writer.write(Batch(run="r", number=0, rows=table(schema, rows), signs=signs([1, 1, 1, 1, -1])))
        self.holds(destination, stream, [("a", 1, 4), ("b", 1, 3)])

    def test_null_in_a_key(self, new_destination: NewDestination) -> None:
        if not self.keyed:
            return
        destination, stream = new_destination(), stream_of(key="k", changes=True)
        with closing(destination.sink.open(stream)) as writer:
            writer.write(batch_of(0, [("a", 1, 1)]))
            if not self.null_keys:
                with pytest.raises(InvalidError, match="k"):
                    writer.write(batch_of(1, [("b", 2, 1), (None, 3, 1)]))
                self.holds(destination, stream, [("a", 1)])
                return
            writer.write(batch_of(1, [(None, 2, 1), (None, 3, 1)]))
            self.holds(destination, stream, [("a", 1), (None, 3)])
            writer.write(batch_of(2, [(None, 3, -1)]))
        self.holds(destination, stream, [("a", 1)])

    def test_a_rehearsal_leaves_nothing(self, new_destination: NewDestination) -> None:
        destination, stream = new_destination(), stream_of(key="k" if self.keyed else "")
        with closing(destination.sink.open(stream)) as writer:
            if not isinstance(writer, Rehearsing):
                return
            writer.write(batch_of(0, [("a", 1, 1)], signed=False))
            writer.rehearse(batch_of(1, [("a", 2, 1), ("b", 3, 1)], signed=False))
            self.holds(destination, stream, [("a", 1)])
            assert writer.write(batch_of(1, [("b", 4, 1)], signed=False))
        self.holds(destination, stream, [("a", 1), ("b", 4)])

    # -- types ------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("name", VALUES)
    def test_values_are_read_as_they_were_written(self, new_destination: NewDestination, name: str) -> None:
        kind, values = VALUES[name]
        schema = pa.schema({"k": pa.int32(), "v": kind})
        key = ("k",) if self.keyed else ()
        destination, stream = new_destination(), Stream(query="app.q", schema=schema, key=key)
        if name not in self.types:
            check_open_fails(destination, stream, match="v")
            return
        rows = list(enumerate([*values, None]))
        with closing(destination.sink.open(stream)) as writer:
            writer.write(Batch(run="r", number=0, rows=table(schema, rows)))
        self.holds(destination, stream, rows)

    @pytest.mark.parametrize("name", VALUES)
    def test_keys_of_a_type_are_found_again(self, new_destination: NewDestination, name: str) -> None:
        if not self.keyed or name not in self.types or name not in self.key_types:
            return
        kind, values = VALUES[name]
        schema = pa.schema({"k": kind, "v": pa.int64()})
        destination, stream = new_destination(), Stream(query="app.q", schema=schema, key=("k",), changes=True)
        rows = [(value, n) for n, value in enumerate(values)]
        with closing(destination.sink.open(stream)) as writer:
            writer.write(Batch(run="r", number=0, rows=table(schema, rows), signs=signs([1] * len(rows))))
            self.holds(destination, stream, rows)
            half = [(value, n + 100 if n % 2 else n) for value, n in rows]
            back = signs([1 if n % 2 else -1 for n in range(len(rows))])
            writer.write(Batch(run="r", number=1, rows=table(schema, half), signs=back))
        self.holds(destination, stream, half[1::2])

    def test_a_stream_of_another_type_is_rejected(self, new_destination: NewDestination) -> None:
        if not self.typed:
            return
        destination = new_destination()
        with closing(destination.sink.open(default_stream(self))) as writer:
            writer.write(batch_of(0, [("a", 1, 1)], signed=False))
        other = pa.schema({"k": pa.string(), "v": pa.timestamp("us", tz="UTC")})
        key = default_stream(self).key
        check_open_fails(destination, Stream(query="app.q", schema=other, key=key), match="v")
        wider = pa.schema([*KEYED, pa.field("another", pa.string())])
        check_open_fails(destination, Stream(query="app.q", schema=wider, key=key), match="another")
        self.holds(destination, default_stream(self), [("a", 1)])

    # -- exactly once -----------------------------------------------------------------------------------------

    def test_a_repeated_batch_is_skipped(self, new_destination: NewDestination) -> None:
        destination = new_destination()
        with closing(destination.sink.open(default_stream(self))) as writer:
            first, second = batch_of(3, [("a", 1, 1)], signed=False), batch_of(7, [("a", 2, 1)], signed=False)
            assert writer.write(first) is True
            assert writer.write(first) is False
            assert writer.write(second) is True
            assert writer.write(first) is False, "an older batch has already been written"
        with closing(destination.sink.open(default_stream(self))) as writer:
            assert writer.write(second) is False, "after a new open"
            assert writer.write(first) is False
            assert writer.write(batch_of(8, [("b", 3, 1)], signed=False)) is True
        self.holds(destination, default_stream(self), remaining(self, [("a", 1), ("a", 2), ("b", 3)]))

    def test_an_interrupted_write_is_atomic_and_can_be_repeated(self, new_destination: NewDestination) -> None:
        destination, stream = new_destination(), default_stream(self)
        attempts = (
            destination.interruptions(stream)
            if destination.interruptions
            else writes_with_kill(destination.sink, stream, self.kills)
        )
        rows: list[tuple[Any, Any]] = []
        count = 0
        for count, interrupt in enumerate(attempts, 1):
            new = [(f"{count}-{n % 40}", n) for n in range(50)]
            batch = batch_of(count, [(k, v, 1) for k, v in new], signed=False)
            with suppress(Exception):
                interrupt(batch)
            before, after = remaining(self, rows), remaining(self, [*rows, *new])
            found = rows_found(destination, stream)
            wrong = f"after interruption {count}, the destination has a part of the batch"
            assert found in (rows_expected(self, stream, before), rows_expected(self, stream, after)), wrong
            with closing(destination.sink.open(stream)) as writer:
                writer.write(batch)
            rows += new
            self.holds(destination, stream, after)
        assert count > 0, "the destination yields no interruptions"

    # -- runs and concurrent writers --------------------------------------------------------------------------

    def test_a_new_run_starts_afresh(self, new_destination: NewDestination) -> None:
        destination = new_destination()
        with closing(destination.sink.open(default_stream(self))) as writer:
            writer.write(batch_of(0, [("a", 1, 1), ("b", 2, 1)], signed=False))
            writer.write(batch_of(5, [("a", 3, 1)], signed=False))
        with closing(destination.sink.open(default_stream(self))) as writer:
            new = batch_of(1, [("c", 9, 1)], run="second", signed=False)
            if not self.fresh_start:
                with pytest.raises(ConflictError):
                    writer.write(new)
                self.holds(destination, default_stream(self), remaining(self, [("a", 1), ("b", 2), ("a", 3)]))
                return
            self.holds(destination, default_stream(self), remaining(self, [("a", 1), ("b", 2), ("a", 3)]))
            assert writer.write(new) is True
            assert writer.write(new) is False
        self.holds(destination, default_stream(self), [("c", 9)])

    def test_a_run_that_was_replaced_is_over(self, new_destination: NewDestination) -> None:
        """Otherwise its next batch would be taken as the start of a new run, and earlier rows would be lost."""
        if not self.fresh_start:
            return
        destination = new_destination()
        with closing(destination.sink.open(default_stream(self))) as writer:
            writer.write(batch_of(0, [("a", 1, 1)], signed=False))
            writer.write(batch_of(0, [("b", 2, 1)], run="second", signed=False))
        with closing(destination.sink.open(default_stream(self))) as writer, pytest.raises(ConflictError):
            writer.write(batch_of(1, [("c", 3, 1)], signed=False))
        self.holds(destination, default_stream(self), [("b", 2)])

    def test_a_run_that_continues_another_keeps_its_rows(self, new_destination: NewDestination) -> None:
        destination = new_destination()
        with closing(destination.sink.open(default_stream(self))) as writer:
            writer.write(batch_of(7, [("a", 1, 1)], signed=False))
        with closing(destination.sink.open(replace(default_stream(self), continues="r"))) as writer:
            assert writer.write(batch_of(0, [("b", 2, 1)], run="second", signed=False)) is True
            assert writer.write(batch_of(0, [("b", 2, 1)], run="second", signed=False)) is False
            assert writer.write(batch_of(1, [("c", 3, 1)], run="second", signed=False)) is True
        self.holds(destination, default_stream(self), [("a", 1), ("b", 2), ("c", 3)])

    def test_a_later_writer_fences_the_earlier_one(self, new_destination: NewDestination) -> None:
        destination = new_destination()
        zombie = destination.sink.open(default_stream(self))
        zombie.write(batch_of(0, [("a", 1, 1)], signed=False))
        with closing(destination.sink.open(default_stream(self))) as writer:
            for number in (1, 2):  # a retry fails as well
                with pytest.raises(ConflictError):
                    zombie.write(batch_of(number, [("b", 2, 1)], signed=False))
            self.holds(destination, default_stream(self), [("a", 1)])
            assert writer.write(batch_of(1, [("c", 3, 1)], signed=False))
            with pytest.raises(ConflictError):
                zombie.write(batch_of(2, [("d", 4, 1)], signed=False))
        zombie.close()
        self.holds(destination, default_stream(self), [("a", 1), ("c", 3)])

    def test_queries_do_not_fence_each_other(self, new_destination: NewDestination) -> None:
        destination = new_destination()
        with closing(destination.sink.open(default_stream(self))) as writer:
            with suppress(HeadwaterError):  # A destination for a single query may raise an error.
                destination.sink.open(
                    Stream(query="app.other", schema=KEYED, key=default_stream(self).key)
                ).close()
            assert writer.write(batch_of(0, [("a", 1, 1)], signed=False))
        self.holds(destination, default_stream(self), [("a", 1)])

    def test_only_one_of_two_concurrent_writers_succeeds(self, new_destination: NewDestination) -> None:
        for _ in range(ROUNDS):
            destination = new_destination()
            wrote = race(destination.sink, default_stream(self))
            assert len(wrote) == 1, f"{len(wrote)} of two wrote"
            self.holds(destination, default_stream(self), [(wrote[0], 1)])

    # -- random histories -------------------------------------------------------------------------------------

    @given(data=st.data())
    @_settings
    def test_any_history_adds_up(self, new_destination: NewDestination, data: st.DataObject) -> None:
        destination, stream = new_destination(), stream_of(key="k" if self.keyed else None, changes=self.keyed)
        oracle = _Oracle(keyed=self.keyed)
        writer, number, run, written = destination.sink.open(stream), 0, "r", list[Batch]()
        try:
            for changes, then, gap in data.draw(STEPS):
                batch = batch_of(number, oracle.add(changes), run=run, signed=self.keyed)
                assert writer.write(batch) is True
                written.append(batch)
                number += gap
                if then == "again":
                    assert writer.write(batch) is False
                elif then == "old":
                    assert writer.write(data.draw(st.sampled_from(written))) is False
                elif then == "new run" and self.fresh_start:
                    run, number = f"{run}+", data.draw(st.integers(0, 2))
                    oracle, written = _Oracle(keyed=self.keyed), []
                    oracle.pending = True
                if then in ("reopen", "new run"):
                    writer.close()
                    writer = destination.sink.open(stream)
        finally:
            writer.close()
        if not oracle.pending:
            self.holds(destination, stream, oracle.rows)


class _Oracle:
    """The rows that the destination must have, in a list."""

    def __init__(self, *, keyed: bool) -> None:
        self._keyed = keyed
        self._rows: list[tuple[Any, Any]] = []
        self.pending = False
        """A new run has begun and has written nothing yet, so the rows of the previous run may still exist."""

    def add(self, changes: list[Change]) -> list[Change]:
        """Apply changes, and return them with retractions only of rows that exist."""
        self.pending = False
        if not self._keyed:
            self._rows += [(k, v) for k, v, _ in changes]
            return changes
        rows, applied = dict(self._rows), list[Change]()
        for k, v, sign in changes:
            if sign < 0 and k in rows:
                applied.append((k, rows.pop(k), -1))
            else:
                applied.append((k, v, 1))
                rows[k] = v
        self._rows = list(rows.items())
        return applied

    @property
    def rows(self) -> list[tuple[Any, Any]]:
        return self._rows


def default_stream(contract: SinkContract) -> Stream:
    """Return a stream that the sink accepts, with a key if possible."""
    return stream_of(key="k" if contract.keyed else None)


def remaining(contract: SinkContract, rows: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Return the rows that remain of rows written in this order."""
    return list(dict(rows).items()) if contract.keyed else rows


def rows_found(destination: Destination, stream: Stream) -> "Counter[Any]":
    """Return the destination's rows in a form that can be compared."""
    rows = destination.read(stream)
    return Counter(tuple(canonical(row[f.name], f.type) for f in stream.schema) for row in rows)


def rows_expected(contract: SinkContract, stream: Stream, rows: Iterable[tuple[Any, ...]]) -> "Counter[Any]":
    """Return rows that were written as reading should return them."""
    fields = list(stream.schema)
    return Counter(
        tuple(
            canonical(None if value is None else contract.kept(value, field.type), field.type)
            for field, value in zip(fields, row, strict=True)
        )
        for row in rows
    )


def race(sink: Sink, stream: Stream) -> list[str]:
    """Let two writers open and then write at the same time, and return the names of those that succeeded."""
    opening, writing = threading.Barrier(2), threading.Barrier(2)

    def run(name: str) -> bool:
        opening.wait()
        try:
            writer = sink.open(stream)
        except ConflictError:
            return False
        finally:
            writing.wait()
        with closing(writer), suppress(ConflictError):
            writer.write(batch_of(0, [(name, 1, 1)], signed=False))
            return True
        return False

    names = ("one", "two")
    with ThreadPoolExecutor(2) as threads:
        return [name for name, wrote in zip(names, threads.map(run, names), strict=True) if wrote]


def check_open_fails(destination: Destination, stream: Stream, match: str | None = None) -> None:
    """Check that `open` raises a Headwater error, whose message matches `match`."""
    with pytest.raises((InvalidError, ConflictError), match=match):
        destination.sink.open(stream).close()
