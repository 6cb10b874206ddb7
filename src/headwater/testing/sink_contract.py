"""The contract of sinks as a suite of tests: every sink of ours passes it, and one of your own should.

    from headwater.testing.sink_contract import Place, SinkContract

    class TestMySink(SinkContract):
        @pytest.fixture
        def new_place(self, tmp_path):
            def make():
                sink = MySink(tmp_path / str(uuid4()))
                return Place(sink=sink, read=lambda stream: rows_in(sink))
            return make

`new_place` gives an empty place at each call. What a sink does not offer is said by the class's attributes; then
the suite asks for a refusal in its stead. Needs pytest and hypothesis.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.errors import ConflictError, HeadwaterError, InvalidError
from headwater.sink import Batch, Rehearsing, Sink, Stream
from headwater.testing.process_kill import killed
from headwater.testing.sample_values import VALUES, canonical, json_form

__all__ = ["SinkContract", "Place", "VALUES", "json_form"]

Change = tuple[Any, Any, int]
"""A key, a value, and 1 for a row that is put or -1 for one that is taken back."""

KEYED = pa.schema({"k": pa.string(), "v": pa.int64()})
ROUNDS = 8
"""How often two openers are let loose on each other."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """An empty place for results, as a test sees it.

    `read` gives the rows that are there for a stream, with values as Arrow's `to_pylist` gives them; none if there
    is nothing yet. `interruptions`, if there is a way: attempts to write a batch, each of which fails at another
    step of the writing. Without it a process that writes is killed at random moments; then the sink must be a
    value that can be pickled.
    """

    sink: Sink
    read: Callable[[Stream], list[dict[str, Any]]]
    interruptions: Callable[[Stream], Iterable[Callable[[Batch], None]]] | None = None


NewPlace = Callable[[], Place]

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
"""Batches; what happens after each; and by how much the number grows."""

_settings = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,  # `new_place` makes a new one for every example.
        HealthCheck.differing_executors,  # Each sink's class runs the same test, which is the point.
        HealthCheck.too_slow,
    ],
)


class SinkContract:
    """What holds for every sink. A class for yours inherits these tests and gives the fixture `new_place`."""

    keyed = True
    """Takes streams with a key; else `open` raises an InvalidError."""
    keyless = True
    """Takes streams without a key; else `open` raises an InvalidError."""
    takes_back_without_key = False
    """Takes changes without a key, and removes one row for each that is taken back; else `open` raises."""
    fresh_start = True
    """A new run's first batch replaces what was there; else it is refused with a ConflictError."""
    typed = True
    """Knows the types of what is there, so that a stream of others is refused by `open`."""
    null_keys = True
    """A key may be null; else such a batch is refused with an InvalidError and changes nothing."""
    types: tuple[str, ...] = tuple(VALUES)
    """The kinds of columns it takes; `open` raises an InvalidError that names the column for each other one."""
    key_types: tuple[str, ...] = ("string", "bigint", "timestamp", "date", "decimal", "boolean", "struct")
    kills = 4
    """How many processes are killed while they write, where there is no other way."""

    @pytest.fixture
    def new_place(self) -> NewPlace:
        raise NotImplementedError("give the fixture `new_place`: a function that makes an empty `Place`")

    def kept(self, value: Any, kind: pa.DataType) -> Any:
        """What reading gives for a value (not null) that was written, where that is not the value itself."""
        return value

    def holds(self, place: Place, stream: Stream, rows: Iterable[tuple[Any, ...]]) -> None:
        """Check that these rows are there, and no others."""
        found, wanted = contents(place, stream), wanted_rows(self, stream, rows)
        missing, more = (sorted(c.elements(), key=repr) for c in (wanted - found, found - wanted))
        assert found == wanted, f"missing: {missing}, too many: {more}"

    # -- rows and changes -------------------------------------------------------------------------------------

    def test_rows_without_a_key_are_appended(self, new_place: NewPlace) -> None:
        place, stream = new_place(), stream_of()
        if not self.keyless:
            refuses_to_open(place, stream)
            return
        with closing(place.sink.open(stream)) as writer:
            assert writer.write(batch_of(0, [("a", 1, 1), ("a", 1, 1)], signed=False))
            assert writer.write(batch_of(1, [("a", 2, 1), (None, None, 1)], signed=False))
        self.holds(place, stream, [("a", 1), ("a", 1), ("a", 2), (None, None)])

    def test_a_row_replaces_the_one_of_its_key(self, new_place: NewPlace) -> None:
        place, stream = new_place(), stream_of(key="k")
        if not self.keyed:
            refuses_to_open(place, stream)
            return
        with closing(place.sink.open(stream)) as writer:
            writer.write(batch_of(0, [("a", 1, 1), ("b", 2, 1), ("a", 3, 1)], signed=False))
            self.holds(place, stream, [("a", 3), ("b", 2)])
            writer.write(batch_of(1, [("b", None, 1), ("c", 5, 1)], signed=False))
        self.holds(place, stream, [("a", 3), ("b", None), ("c", 5)])

    def test_a_row_that_is_taken_back_is_gone(self, new_place: NewPlace) -> None:
        if not self.keyed:
            return
        place, stream = new_place(), stream_of(key="k", changes=True)
        with closing(place.sink.open(stream)) as writer:
            writer.write(batch_of(0, [("a", 1, 1), ("b", 2, 1), ("c", 3, 1)]))
            writer.write(batch_of(1, [("a", 1, -1), ("b", 2, -1), ("b", 4, 1), ("d", 5, 1), ("d", 5, -1)]))
            self.holds(place, stream, [("b", 4), ("c", 3)])
            writer.write(batch_of(2, [("b", 4, -1), ("c", 3, -1)]))
            self.holds(place, stream, [])
            writer.write(batch_of(3, [("a", 6, 1)]))
        self.holds(place, stream, [("a", 6)])

    def test_changes_without_a_key(self, new_place: NewPlace) -> None:
        place, stream = new_place(), stream_of(changes=True)
        if not (self.keyless and self.takes_back_without_key):
            refuses_to_open(place, stream)
            return
        with closing(place.sink.open(stream)) as writer:
            writer.write(batch_of(0, [("a", 1, 1), ("a", 1, 1), ("b", 2, 1)]))
            writer.write(batch_of(1, [("a", 1, -1), ("b", 3, 1), ("b", 3, -1)]))
        self.holds(place, stream, [("a", 1), ("b", 2)])

    def test_a_key_of_several_columns(self, new_place: NewPlace) -> None:
        if not self.keyed:
            return
        schema = pa.schema({"k": pa.string(), "n": pa.int32(), "v": pa.int64()})
        place, stream = new_place(), Stream(query="app.q", schema=schema, key=("k", "n"), changes=True)
        rows = [("a", 1, 1), ("a", 2, 2), ("b", 1, 3), ("a", 1, 4), ("a", 2, 2)]
        with closing(place.sink.open(stream)) as writer:
            writer.write(Batch(run="r", number=0, rows=table(schema, rows), signs=signs([1, 1, 1, 1, -1])))
        self.holds(place, stream, [("a", 1, 4), ("b", 1, 3)])

    def test_null_in_a_key(self, new_place: NewPlace) -> None:
        if not self.keyed:
            return
        place, stream = new_place(), stream_of(key="k", changes=True)
        with closing(place.sink.open(stream)) as writer:
            writer.write(batch_of(0, [("a", 1, 1)]))
            if not self.null_keys:
                with pytest.raises(InvalidError, match="k"):
                    writer.write(batch_of(1, [("b", 2, 1), (None, 3, 1)]))
                self.holds(place, stream, [("a", 1)])
                return
            writer.write(batch_of(1, [(None, 2, 1), (None, 3, 1)]))
            self.holds(place, stream, [("a", 1), (None, 3)])
            writer.write(batch_of(2, [(None, 3, -1)]))
        self.holds(place, stream, [("a", 1)])

    def test_a_rehearsal_leaves_nothing(self, new_place: NewPlace) -> None:
        place, stream = new_place(), stream_of(key="k" if self.keyed else "")
        with closing(place.sink.open(stream)) as writer:
            if not isinstance(writer, Rehearsing):
                return
            writer.write(batch_of(0, [("a", 1, 1)], signed=False))
            writer.rehearse(batch_of(1, [("a", 2, 1), ("b", 3, 1)], signed=False))
            self.holds(place, stream, [("a", 1)])
            assert writer.write(batch_of(1, [("b", 4, 1)], signed=False))
        self.holds(place, stream, [("a", 1), ("b", 4)])

    # -- types ------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("name", VALUES)
    def test_values_come_back_as_they_were(self, new_place: NewPlace, name: str) -> None:
        kind, values = VALUES[name]
        schema = pa.schema({"k": pa.int32(), "v": kind})
        key = ("k",) if self.keyed else ()
        place, stream = new_place(), Stream(query="app.q", schema=schema, key=key)
        if name not in self.types:
            refuses_to_open(place, stream, match="v")
            return
        rows = list(enumerate([*values, None]))
        with closing(place.sink.open(stream)) as writer:
            writer.write(Batch(run="r", number=0, rows=table(schema, rows)))
        self.holds(place, stream, rows)

    @pytest.mark.parametrize("name", VALUES)
    def test_keys_of_a_type_are_found_again(self, new_place: NewPlace, name: str) -> None:
        if not self.keyed or name not in self.types or name not in self.key_types:
            return
        kind, values = VALUES[name]
        schema = pa.schema({"k": kind, "v": pa.int64()})
        place, stream = new_place(), Stream(query="app.q", schema=schema, key=("k",), changes=True)
        rows = [(value, n) for n, value in enumerate(values)]
        with closing(place.sink.open(stream)) as writer:
            writer.write(Batch(run="r", number=0, rows=table(schema, rows), signs=signs([1] * len(rows))))
            self.holds(place, stream, rows)
            half = [(value, n + 100 if n % 2 else n) for value, n in rows]
            back = signs([1 if n % 2 else -1 for n in range(len(rows))])
            writer.write(Batch(run="r", number=1, rows=table(schema, half), signs=back))
        self.holds(place, stream, half[1::2])

    def test_a_stream_of_another_type_is_refused(self, new_place: NewPlace) -> None:
        if not self.typed:
            return
        place = new_place()
        with closing(place.sink.open(usual(self))) as writer:
            writer.write(batch_of(0, [("a", 1, 1)], signed=False))
        other = pa.schema({"k": pa.string(), "v": pa.timestamp("us", tz="UTC")})
        refuses_to_open(place, Stream(query="app.q", schema=other, key=usual(self).key), match="v")
        wider = pa.schema([*KEYED, pa.field("another", pa.string())])
        refuses_to_open(place, Stream(query="app.q", schema=wider, key=usual(self).key), match="another")
        self.holds(place, usual(self), [("a", 1)])

    # -- once -------------------------------------------------------------------------------------------------

    def test_a_batch_that_comes_again_is_skipped(self, new_place: NewPlace) -> None:
        place = new_place()
        with closing(place.sink.open(usual(self))) as writer:
            first, second = batch_of(3, [("a", 1, 1)], signed=False), batch_of(7, [("a", 2, 1)], signed=False)
            assert writer.write(first) is True
            assert writer.write(first) is False
            assert writer.write(second) is True
            assert writer.write(first) is False, "an older batch is there already"
        with closing(place.sink.open(usual(self))) as writer:
            assert writer.write(second) is False, "after a new open"
            assert writer.write(first) is False
            assert writer.write(batch_of(8, [("b", 3, 1)], signed=False)) is True
        self.holds(place, usual(self), summed(self, [("a", 1), ("a", 2), ("b", 3)]))

    def test_an_interrupted_write_is_whole_or_nothing_and_can_be_done_again(self, new_place: NewPlace) -> None:
        place, stream = new_place(), usual(self)
        ways = place.interruptions(stream) if place.interruptions else killed(place.sink, stream, self.kills)
        rows: list[tuple[Any, Any]] = []
        count = 0
        for count, interrupt in enumerate(ways, 1):
            new = [(f"{count}-{n % 40}", n) for n in range(50)]
            batch = batch_of(count, [(k, v, 1) for k, v in new], signed=False)
            with suppress(Exception):
                interrupt(batch)
            before, after = summed(self, rows), summed(self, [*rows, *new])
            found = contents(place, stream)
            wrong = f"after interruption {count} there is a part of the batch"
            assert found in (wanted_rows(self, stream, before), wanted_rows(self, stream, after)), wrong
            with closing(place.sink.open(stream)) as writer:
                writer.write(batch)
            rows += new
            self.holds(place, stream, after)
        assert count > 0, "the place has no way to interrupt a write"

    # -- runs and rivals --------------------------------------------------------------------------------------

    def test_a_new_run_starts_afresh(self, new_place: NewPlace) -> None:
        place = new_place()
        with closing(place.sink.open(usual(self))) as writer:
            writer.write(batch_of(0, [("a", 1, 1), ("b", 2, 1)], signed=False))
            writer.write(batch_of(5, [("a", 3, 1)], signed=False))
        with closing(place.sink.open(usual(self))) as writer:
            new = batch_of(1, [("c", 9, 1)], run="second", signed=False)
            if not self.fresh_start:
                with pytest.raises(ConflictError):
                    writer.write(new)
                self.holds(place, usual(self), summed(self, [("a", 1), ("b", 2), ("a", 3)]))
                return
            self.holds(place, usual(self), summed(self, [("a", 1), ("b", 2), ("a", 3)]))
            assert writer.write(new) is True
            assert writer.write(new) is False
        self.holds(place, usual(self), [("c", 9)])

    def test_a_run_that_was_replaced_is_over(self, new_place: NewPlace) -> None:
        """Else its next batch would be taken as a fresh start, and what came before be lost."""
        if not self.fresh_start:
            return
        place = new_place()
        with closing(place.sink.open(usual(self))) as writer:
            writer.write(batch_of(0, [("a", 1, 1)], signed=False))
            writer.write(batch_of(0, [("b", 2, 1)], run="second", signed=False))
        with closing(place.sink.open(usual(self))) as writer, pytest.raises(ConflictError):
            writer.write(batch_of(1, [("c", 3, 1)], signed=False))
        self.holds(place, usual(self), [("b", 2)])

    def test_a_run_that_continues_another_keeps_its_rows(self, new_place: NewPlace) -> None:
        place = new_place()
        with closing(place.sink.open(usual(self))) as writer:
            writer.write(batch_of(7, [("a", 1, 1)], signed=False))
        with closing(place.sink.open(replace(usual(self), continues="r"))) as writer:
            assert writer.write(batch_of(0, [("b", 2, 1)], run="second", signed=False)) is True
            assert writer.write(batch_of(0, [("b", 2, 1)], run="second", signed=False)) is False
            assert writer.write(batch_of(1, [("c", 3, 1)], run="second", signed=False)) is True
        self.holds(place, usual(self), [("a", 1), ("b", 2), ("c", 3)])

    def test_who_opens_later_fences_who_opened_before(self, new_place: NewPlace) -> None:
        place = new_place()
        zombie = place.sink.open(usual(self))
        zombie.write(batch_of(0, [("a", 1, 1)], signed=False))
        with closing(place.sink.open(usual(self))) as writer:
            for number in (1, 2):  # and it does not help to try again
                with pytest.raises(ConflictError):
                    zombie.write(batch_of(number, [("b", 2, 1)], signed=False))
            self.holds(place, usual(self), [("a", 1)])
            assert writer.write(batch_of(1, [("c", 3, 1)], signed=False))
            with pytest.raises(ConflictError):
                zombie.write(batch_of(2, [("d", 4, 1)], signed=False))
        zombie.close()
        self.holds(place, usual(self), [("a", 1), ("c", 3)])

    def test_queries_do_not_fence_each_other(self, new_place: NewPlace) -> None:
        place = new_place()
        with closing(place.sink.open(usual(self))) as writer:
            with suppress(HeadwaterError):  # A place for one query alone may say so.
                place.sink.open(Stream(query="app.other", schema=KEYED, key=usual(self).key)).close()
            assert writer.write(batch_of(0, [("a", 1, 1)], signed=False))
        self.holds(place, usual(self), [("a", 1)])

    def test_of_two_that_open_at_the_same_time_one_writes(self, new_place: NewPlace) -> None:
        for _ in range(ROUNDS):
            place = new_place()
            wrote = race(place.sink, usual(self))
            assert len(wrote) == 1, f"{len(wrote)} of two wrote"
            self.holds(place, usual(self), [(wrote[0], 1)])

    # -- all together -----------------------------------------------------------------------------------------

    @given(data=st.data())
    @_settings
    def test_any_history_adds_up(self, new_place: NewPlace, data: st.DataObject) -> None:
        place, stream = new_place(), stream_of(key="k" if self.keyed else None, changes=self.keyed)
        oracle = _Oracle(keyed=self.keyed)
        writer, number, run, written = place.sink.open(stream), 0, "r", list[Batch]()
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
                    writer = place.sink.open(stream)
        finally:
            writer.close()
        if not oracle.pending:
            self.holds(place, stream, oracle.rows)


class _Oracle:
    """What must be there, kept in a list."""

    def __init__(self, *, keyed: bool) -> None:
        self._keyed = keyed
        self._rows: list[tuple[Any, Any]] = []
        self.pending = False
        """A new run was begun and nothing written yet, so that the old rows may still be there."""

    def add(self, changes: list[Change]) -> list[Change]:
        """Take the changes; what is taken back is made to be a row that is there."""
        self.pending = False
        if not self._keyed:
            self._rows += [(k, v) for k, v, _ in changes]
            return changes
        rows, told = dict(self._rows), list[Change]()
        for k, v, sign in changes:
            if sign < 0 and k in rows:
                told.append((k, rows.pop(k), -1))
            else:
                told.append((k, v, 1))
                rows[k] = v
        self._rows = list(rows.items())
        return told

    @property
    def rows(self) -> list[tuple[Any, Any]]:
        return self._rows


def usual(contract: SinkContract) -> Stream:
    """A stream that the sink takes: with a key if it can."""
    return stream_of(key="k" if contract.keyed else None)


def summed(contract: SinkContract, rows: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """What rows that came one after the other leave behind."""
    return list(dict(rows).items()) if contract.keyed else rows


def contents(place: Place, stream: Stream) -> "Counter[Any]":
    """What is there, in a form that can be compared."""
    rows = place.read(stream)
    return Counter(tuple(canonical(row[f.name], f.type) for f in stream.schema) for row in rows)


def wanted_rows(contract: SinkContract, stream: Stream, rows: Iterable[tuple[Any, ...]]) -> "Counter[Any]":
    """Rows that were written, as reading should give them."""
    fields = list(stream.schema)
    return Counter(
        tuple(
            canonical(None if value is None else contract.kept(value, field.type), field.type)
            for field, value in zip(fields, row, strict=True)
        )
        for row in rows
    )


def race(sink: Sink, stream: Stream) -> list[str]:
    """Two writers opened at the same time write at the same time: who did."""
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


def stream_of(*, key: str | None = None, changes: bool = False) -> Stream:
    """A stream of rows (k string, v bigint)."""
    return Stream(query="app.q", schema=KEYED, key=(key,) if key else (), changes=changes)


def batch_of(number: int, changes: list[Change], *, run: str = "r", signed: bool = True) -> Batch:
    """A batch of rows (k string, v bigint); signs only where rows may be taken back."""
    rows = table(KEYED, [(k, v) for k, v, _ in changes])
    return Batch(
        run=run, number=number, rows=rows, signs=signs([sign for *_, sign in changes]) if signed else None
    )


def table(schema: pa.Schema, rows: Iterable[tuple[Any, ...]]) -> pa.Table:
    """Rows as an Arrow table."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(list(column), field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def signs(values: Iterable[int]) -> pa.Array:
    return pa.array(list(values), pa.int8())


def refuses_to_open(place: Place, stream: Stream, match: str | None = None) -> None:
    """Check that `open` raises an error of ours that names what does not fit."""
    with pytest.raises((InvalidError, ConflictError), match=match):
        place.sink.open(stream).close()
