from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from headwater.errors import InvalidError
from headwater.store.late import LateRow
from headwater.store.pipelines.generations import Generation, Generations
from headwater.store.shapes import ViewShape
from headwater.store.subscription import EventKind, SubscriberPosition, next_events
from headwater.store.values.column_types import Column
from headwater.store.views import ViewStore

LATE = LateRow(
    operator="windowed-0", key={"k": "a"}, window_start=0, window_end=1, event_time=0, late_by=5, reason="expired",
    last_pane=None, row={"k": "a"},
)  # fmt: skip


def shape(name: str, *columns: str) -> ViewShape:
    return ViewShape(
        name=name, key=("k",), columns=(Column("k", "string"), *(Column(c, "bigint") for c in columns))
    )


def rows(**values: int) -> pa.Table:
    return pa.table({"k": list(values), "v": list(values.values())})


@pytest.fixture
def store(location: Path | str, open_store: Callable[..., ViewStore]) -> ViewStore:
    store = open_store(location)
    store.declare(shape("totals", "v"))
    store.commit_rows("totals", rows(a=1, b=2), run="first", batch=0, late_rows=[LATE])
    return store


def read(store: ViewStore) -> dict[str, int]:
    return {row["k"]: row["v"] for row in store.rows("totals")}


def test_the_first_generation_of_a_query_is_zero(store: ViewStore) -> None:
    current = Generations(store).current("totals")
    assert (current, current.name) == (Generation(query="totals"), "totals")


def test_a_rebuilt_view_replaces_the_old_one(store: ViewStore) -> None:
    generations = Generations(store)
    requested = generations.request_rebuild("totals")
    assert generations.request_rebuild("totals") == requested
    assert generations.rebuilds() == [requested]
    store.declare(shape(requested.name, "w"))
    rebuilt = pa.table({"k": ["a"], "w": [10]})
    store.commit_rows(requested.name, rebuilt, run="second", batch=7, late_rows=[LATE, LATE])
    assert [view.name for view in store.views()] == ["totals"]
    assert read(store) == {"a": 1, "b": 2}

    generations.swap(requested)
    assert store.rows("totals") == [{"k": "a", "w": 10}]
    assert store.rows("totals", key=["a"]) == [{"k": "a", "w": 10}]
    progress = store.progress("totals")
    assert progress is not None
    assert (progress.run, progress.batch) == ("second", 7)
    assert store.late_counts() == {"totals": (2, 2)}
    assert generations.current("totals") == requested
    assert generations.rebuilds() == []
    with pytest.raises(InvalidError, match="there is no view"):
        store.rows(requested.name)
    store.commit_rows("totals", pa.table({"k": ["c"], "w": [3]}), run="second", batch=8)
    assert store.count("totals") == 2
    assert generations.request_rebuild("totals").number == 2


def test_subscribers_of_a_swapped_view_are_reset(store: ViewStore) -> None:
    position = store.position("totals")
    generations = Generations(store)
    requested = generations.request_rebuild("totals")
    store.declare(shape(requested.name, "v"))
    store.commit_rows(requested.name, rows(a=5), run="second", batch=0)
    generations.swap(requested)
    at, [reset] = next_events(store, "totals", SubscriberPosition(position))
    assert reset.kind is EventKind.RESET
    store.commit_rows("totals", rows(a=6), run="second", batch=1)
    assert next_events(store, "totals", SubscriberPosition(position))[1] == [reset]
    assert at.position is not None
    _, [change] = next_events(store, "totals", SubscriberPosition(at.position))
    assert change.change is not None
    assert change.change.after == {"k": "a", "v": 6}


def test_a_new_generation_from_the_start_drops_rows_and_shape(store: ViewStore) -> None:
    generations = Generations(store)
    position = store.position("totals")
    assert generations.restart("totals").name == "totals@1"
    store.declare(shape("totals", "v", "w"))
    assert store.rows("totals") == []
    assert store.progress("totals") is None
    assert store.late_counts() == {}
    assert store.position("totals") > position


def test_a_generation_that_continues_a_run_keeps_its_rows(store: ViewStore) -> None:
    generations = Generations(store)
    starting = {"orders": {"0": 17}}
    generation = generations.restart("totals", continues="first", starting=starting)
    assert generations.current("totals") == generation
    assert generation.starting == starting
    store.commit_rows("totals", rows(b=20), run="second", batch=0, continues="first")
    assert read(store) == {"a": 1, "b": 20}
    store.commit_rows("totals", rows(c=3), run="second", batch=1, continues="first")
    assert read(store) == {"a": 1, "b": 20, "c": 3}


def test_a_restart_cancels_a_requested_rebuild(store: ViewStore) -> None:
    generations = Generations(store)
    requested = generations.request_rebuild("totals")
    restarted = generations.restart("totals", continues="first")
    assert restarted.number > requested.number
    assert generations.rebuilds() == []
