"""The status of an app as JSON, for the API and the console: topics, groups, pipelines and views.

Pipelines use the field names of Spark's StreamingQueryProgress.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headwater.clock import Clock, SystemClock
from headwater.serve.live.catch_up import Backlog, catch_up_seconds
from headwater.serve.live.group_lag import GroupLag, GroupLags
from headwater.serve.live.rates import TopicRate, TopicRates
from headwater.store.late import LateRow
from headwater.store.pipelines.facts import FACTS_KEPT, Fact, FactStore
from headwater.store.shapes import ViewShape
from headwater.store.values.columns import instant_text
from headwater.store.views import ViewStore

HISTORY_KEPT = 60

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiContext:
    """The data that the API reads: the app's stores, and the topics and groups of its log if it has one."""

    app: str
    views: ViewStore
    facts: FactStore
    topics: TopicRates | None
    groups: GroupLags | None = None


def read_status(sources: ApiContext) -> Json:
    """Return the whole status of an app."""
    return {
        "app": sources.app,
        "topics": read_topics(sources),
        "groups": read_groups(sources),
        "pipelines": read_pipelines(sources),
        "views": read_views(sources),
    }


def read_topics(sources: ApiContext) -> list[Json]:
    """Return the topics with their sizes and rates."""
    return [] if sources.topics is None else [_topic(topic) for topic in sources.topics.topics()]


def read_groups(sources: ApiContext) -> list[Json]:
    """Return the consumer groups with their lag and the records they are about to lose."""
    return [] if sources.groups is None else [_group(group) for group in sources.groups.groups()]


def read_pipelines(sources: ApiContext) -> list[Json]:
    """Return the pipelines with their state and their last batches."""
    return summarize_all(sources.facts, SystemClock())


def read_views(sources: ApiContext) -> list[Json]:
    """Return the views with their shape, number of rows and position."""
    late = sources.views.late_counts()
    return [_view(shape, sources.views, late.get(shape.name, (0, 0))) for shape in sources.views.views()]


def describe_columns(shape: ViewShape) -> list[Json]:
    """Return a view's columns, in order."""
    return [{"name": column.name, "type": column.type} for column in shape.columns]


def describe_late(row: LateRow) -> Json:
    """Return a row of the late ledger; times as in a view's rows, durations in milliseconds."""
    return {
        "number": row.number,
        "batchId": row.batch,
        "operator": row.operator,
        "key": row.key,
        "window": _window(row),
        "eventTime": None if row.event_time is None else instant_text(row.event_time),
        "lateByMs": None if row.late_by is None else row.late_by / 1000,
        "reason": row.reason,
        "lastPane": row.last_pane,
        "row": row.row,
        "reprocessed": row.reprocessed,
    }


def _window(row: LateRow) -> Json | None:
    if row.window_start is None or row.window_end is None:
        return None
    return {"start": instant_text(row.window_start), "end": instant_text(row.window_end)}


def summarize_all(facts: FactStore, clock: Clock) -> list[Json]:
    """Return the current state of each pipeline."""
    return [summarize(query, facts.latest(query, limit=FACTS_KEPT), clock.now_ms()) for query in facts.queries()]


def summarize(query: str, facts: Sequence[Fact], now_ms: int) -> Json:
    """Merge a pipeline's facts, given oldest first: each number is the newest one reported."""
    newest = facts[-1].body
    batches = [fact for fact in facts if fact.body.get("batchId") is not None]
    passed_ms = now_ms - batches[-1].at_ms if batches and newest.get("state") == "running" else 0
    return {
        "name": query,
        "state": newest.get("state"),
        "batchId": _newest(facts, "batchId"),
        "numInputRows": _newest(facts, "numInputRows"),
        "inputRowsPerSecond": _newest(facts, "inputRowsPerSecond"),
        "processedRowsPerSecond": _newest(facts, "processedRowsPerSecond"),
        "batchDurationMs": next(_present(_duration_ms(fact) for fact in reversed(facts)), None),
        "behindRecords": _newest(facts, "behindRecords"),
        "catchUpSeconds": catch_up_seconds(_backlogs(batches), passed_s=passed_ms / 1000),
        "leftOutRecords": _newest(facts, "leftOutRecords"),
        "lateRows": _newest(facts, "lateRows"),
        "ignoredRows": _newest(facts, "ignoredRows"),
        "deadLetters": _newest(facts, "deadLetters"),
        "isolating": newest.get("isolating"),
        "lastProgressMs": batches[-1].at_ms if batches else None,
        "error": newest.get("error"),
        "history": [_history_point(fact) for fact in batches[-HISTORY_KEPT:]],
    }


def _topic(topic: TopicRate) -> Json:
    return {
        "name": topic.name,
        "partitions": len(topic.partitions),
        "records": topic.records,
        "recordsPerSecond": topic.records_per_second,
        "partitionOffsets": [
            {"partition": p.partition, "startOffset": p.start, "endOffset": p.end} for p in topic.partitions
        ],
        "history": [{"atMs": p.at_ms, "recordsPerSecond": p.records_per_second} for p in topic.history],
        "stale": topic.stale,
    }


def _group(group: GroupLag) -> Json:
    return {
        "name": group.name,
        "type": group.kind,
        "state": group.state,
        "lagRecords": group.lag_records,
        "atRiskRecords": group.at_risk_records,
        "positions": [
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "offset": position.offset,
                "endOffset": position.end,
                "lagRecords": position.lag_records,
                "atRiskRecords": position.at_risk_records,
            }
            for tp, position in sorted(group.positions.items())
        ],
    }


def _view(shape: ViewShape, views: ViewStore, late: tuple[int, int]) -> Json:
    access = views.access(shape.name)
    return {
        "name": shape.name,
        "key": list(shape.key),
        "columns": describe_columns(shape),
        "rows": views.count(shape.name),
        "position": views.position(shape.name),
        "indexes": [list(columns) for columns in access.indexes],
        "search": list(access.search),
        "history": access.history,
        "lateRows": late[0],
        "lateRowsWaiting": late[1],
    }


def _backlogs(batches: Sequence[Fact]) -> list[Backlog]:
    return [
        Backlog(
            at_ms=fact.at_ms,
            behind_records=fact.body["behindRecords"],
            rows_per_second=next(_present([fact.body.get("processedRowsPerSecond")]), None),
        )
        for fact in batches
        if fact.body.get("behindRecords") is not None
    ]


def _newest(facts: Sequence[Fact], name: str) -> Any:
    return next(_present(fact.body.get(name) for fact in reversed(facts)), None)


def _present(values: Iterable[Any]) -> Iterator[Any]:
    # Spark reports an infinite rate for a batch that took no time; JSON has no infinity, so it is left out.
    return (v for v in values if v is not None and not (isinstance(v, float) and not math.isfinite(v)))


def _duration_ms(fact: Fact) -> int | None:
    return (fact.body.get("durationMs") or {}).get("triggerExecution")


def _history_point(fact: Fact) -> Json:
    return {
        "atMs": fact.at_ms,
        "batchId": fact.body["batchId"],
        "numInputRows": fact.body.get("numInputRows"),
        "durationMs": _duration_ms(fact),
    }
