"""The app of `./dev bench views-per-app` and `start`: as many views over one topic as BENCH_VIEWS says.

Six kinds of views that users write take turns, each time with other columns. It is copied to a folder of its own,
because the folder of an app is on the path of its workers, and modules here have names such as `log` and `sql`.
"""

import os
from collections.abc import Callable

from pyspark.sql import DataFrame

import headwater as hw

app = hw.App("bench")
events = app.topic(
    "events",
    schema="key string, city string, device string, amount double, quantity bigint, sent double, at timestamp",
    event_time="at",
)
COLUMNS = (("key", "amount"), ("city", "quantity"), ("device", "amount"), ("key", "quantity"))
"""The column to group by and the column to compute with, in the order in which the views use them."""


def totals_by_minute(by: str, value: str) -> None:
    windows = hw.windowed(what={"n": hw.count(), "total": hw.sum(value)}, where=hw.Tumbling("1 minute"), by=[by])
    _add("totals_by_minute", [by, "window"], lambda rows: rows.transform(windows), by, value)


def newest(by: str, value: str) -> None:
    _add("newest", [by], lambda rows: rows.select(by, value, "at"), by, value)


def running_panes(by: str, value: str) -> None:
    windows = hw.windowed(
        what={"n": hw.count(), "largest": hw.max(value)},
        where=hw.Hopping("1 minute", "20 seconds"),
        when=hw.AfterWatermark(early=hw.EveryBatch()),
        by=[by],
        lateness="1 minute",
    )
    _add("running_panes", [by, "window"], lambda rows: rows.transform(windows), by, value)


def totals(by: str, value: str) -> None:
    what = {"n": hw.count(), "total": hw.sum(value)}
    _add("totals", [by], lambda rows: hw.aggregate(rows, what=what, by=by), by, value)


def last_three(by: str, value: str) -> None:
    def top(rows: DataFrame) -> DataFrame:
        return hw.top(rows.select(by, value, "sent"), 3, order="sent desc", by=by, rank="rank")

    _add("last_three", [by, "rank"], top, by, value)


def last_seen(by: str, value: str) -> None:
    def last(rows: DataFrame) -> DataFrame:
        return hw.deduplicate(rows.select(by, value, "at"), key=by, keep="last")

    _add("last_seen", [by], last, by, value)


def _add(kind: str, key: list[str], function: Callable[[DataFrame], DataFrame], *columns: str) -> None:
    app.view(events, key=key, name="_".join((kind, *columns)))(function)


KINDS = (totals_by_minute, newest, running_panes, totals, last_three, last_seen)
for number in range(int(os.environ["BENCH_VIEWS"])):
    KINDS[number % len(KINDS)](*COLUMNS[number // len(KINDS)])
