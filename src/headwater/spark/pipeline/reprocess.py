"""Recomputes windows that missed late rows, from all records in the log, where no row is late.

The streaming query has discarded these windows, so it does not write them at the same time.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from headwater.app import Topic, View
from headwater.errors import HeadwaterError, InvalidError
from headwater.spark.operators.windowed import WINDOW
from headwater.spark.pipeline.batch_sinks import collected, signs_of
from headwater.spark.pipeline.failures import read_failure
from headwater.spark.pipeline.plan import call_function, good
from headwater.spark.source.exclusions import Exclusions
from headwater.spark.source.topic_reads import read_all
from headwater.store.late import LateRow
from headwater.store.values.columns import instant_text
from headwater.store.views import ViewStore

_PAGE = 10_000


def reprocess_late(
    view: View, spark: SparkSession, store: ViewStore, servers: str, exclusions: Exclusions | None = None
) -> int:
    """Add a view's late rows to their windows and return their number; rows that missed no window stay."""
    late = _all_late(store, view.name)
    waiting = [row for row in late if not row.reprocessed and row.window_start is not None]
    if not waiting:
        return 0

    def read(topic: Topic) -> DataFrame:
        left_out = {} if exclusions is None else exclusions.options(topic.name)
        return read_all(spark, topic, servers, left_out=left_out)

    rows = call_function(view, good(read))
    if WINDOW not in rows.columns:
        raise InvalidError(
            f"cannot reprocess late rows of view {view.name!r}: its rows have no column {WINDOW!r}",
            hint=f"keep the column {WINDOW!r} in its function, or recompute the whole view from the log: "
            f"headwater rebuild {view.name}",
        )
    numbers = [row.number for row in waiting]
    try:
        table = collected(rows)
    except HeadwaterError:
        raise
    except Exception as error:
        raise HeadwaterError(
            f"cannot reprocess late rows of view {view.name!r}: {read_failure(str(error)).reason}",
            hint="fix the cause and reprocess again: the view and its late rows are unchanged",
        ) from error
    store.commit_late(view.name, table, numbers, signs=signs_of(table), affected=_missed(waiting))
    return len(waiting)


def _all_late(store: ViewStore, view: str) -> list[LateRow]:
    rows: list[LateRow] = []
    while page := store.late_rows(view, after=rows[-1].number if rows else 0, limit=_PAGE):
        rows += page
    return rows


def _missed(late: Sequence[LateRow]) -> Callable[[dict[str, Any]], bool]:
    """Make a function that returns whether a row of the view has the key and overlaps the window of a late row.

    Late rows may merge sessions, so windows are compared by overlap, not by their bounds.
    """
    spans: dict[str, set[tuple[str, str]]] = defaultdict(set)
    names = tuple(late[0].key)
    for row in late:
        assert row.window_start is not None
        assert row.window_end is not None
        window = instant_text(row.window_start), instant_text(row.window_end)
        spans[json.dumps(list(row.key.values()))].add(window)

    def affected(row: dict[str, Any]) -> bool:
        key = json.dumps([row.get(name) for name in names])
        window = row[WINDOW]
        return any(start < window["end"] and window["start"] < end for start, end in spans.get(key, ()))

    return affected
