"""Operators for `df.transform(...)`: what `process` describes, run by Spark."""

from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from headwater.errors import InvalidError
from headwater.process.aggregates import Aggregate, Function
from headwater.process.windows import Tumbling
from headwater.spark.rows import event_time_of

WINDOW = "window"

_FUNCTIONS: dict[Function, Callable[[str], Column]] = {
    Function.COUNT: F.count,
    Function.SUM: F.sum,
    Function.MEAN: F.mean,
    Function.MIN: F.min,
    Function.MAX: F.max,
}


def windowed(
    *, what: Mapping[str, Aggregate], where: Tumbling, by: Sequence[str] = ()
) -> Callable[[DataFrame], DataFrame]:
    """Aggregate the events of each window and group.

    The result has the columns `by`, then `window` (a struct of `start` and `end`), then those of `what`. The event
    time is the one declared with the topic. A window's row changes as long as events for it arrive, however late.
    """
    if not what:
        raise InvalidError("windowed: `what` names nothing to compute")
    clash = {*by, WINDOW} & set(what)
    if clash:
        raise InvalidError(f"windowed: {', '.join(sorted(clash))} would be there twice; rename it in `what`")

    def apply(events: DataFrame) -> DataFrame:
        span = F.window(events[event_time_of(events)], _interval(where)).alias(WINDOW)
        results = [_FUNCTIONS[a.function](a.column or "*").alias(name) for name, a in what.items()]
        return events.groupBy(*by, span).agg(*results).select(*by, WINDOW, *what)

    return apply


def _interval(where: Tumbling) -> str:
    # Spark counts in microseconds and knows nothing finer.
    micros = round(where.duration.total_seconds() * 1_000_000)
    return f"{micros} microseconds"
