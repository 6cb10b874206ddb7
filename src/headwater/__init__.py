"""Headwater: a log that Kafka clients use unchanged, processing on Spark, views and a console."""

from typing import TYPE_CHECKING, Any

from headwater.app import App, Topic, View
from headwater.process.aggregates import (
    approx_distinct,
    approx_quantile,
    approx_top_k,
    collect,
    count,
    distinct,
    first,
    last,
    max,
    mean,
    min,
    quantile,
    sum,
    top_k,
)
from headwater.process.triggers import (
    AfterAll,
    AfterAny,
    AfterCount,
    AfterEach,
    AfterProcessingTime,
    AfterWatermark,
    Default,
    EveryBatch,
    OrFinally,
    PerRecord,
    Repeatedly,
)
from headwater.process.windowing import ACCUMULATING, DISCARDING, RETRACTING
from headwater.process.windows import EVENT_TIME, PROCESSING_TIME, Global, Hopping, Session, Sliding, Tumbling

if TYPE_CHECKING:
    from headwater.spark.grouped import aggregate, deduplicate, rolling, top, union
    from headwater.spark.joins import join
    from headwater.spark.operators import correct_clocks, windowed
    from headwater.spark.tables import table
    from headwater.transmit.embedded import Broker

__version__ = "0.1.0"

__all__ = [  # in teaching order
    "App",
    "Topic",
    "View",
    "windowed",
    "Tumbling",
    "Hopping",
    "Sliding",
    "Session",
    "Global",
    "EVENT_TIME",
    "PROCESSING_TIME",
    "AfterWatermark",
    "AfterCount",
    "AfterProcessingTime",
    "EveryBatch",
    "PerRecord",
    "Repeatedly",
    "AfterAny",
    "AfterAll",
    "AfterEach",
    "OrFinally",
    "Default",
    "DISCARDING",
    "ACCUMULATING",
    "RETRACTING",
    "count",
    "sum",
    "mean",
    "min",
    "max",
    "first",
    "last",
    "collect",
    "distinct",
    "quantile",
    "top_k",
    "approx_distinct",
    "approx_quantile",
    "approx_top_k",
    "table",
    "join",
    "aggregate",
    "top",
    "deduplicate",
    "rolling",
    "union",
    "correct_clocks",
    "Broker",
]

# Spark and the broker are large: whoever needs only one of them does not wait for the other.
_LATER = {
    "windowed": "headwater.spark.operators",
    "table": "headwater.spark.tables",
    "join": "headwater.spark.joins",
    "aggregate": "headwater.spark.grouped",
    "top": "headwater.spark.grouped",
    "deduplicate": "headwater.spark.grouped",
    "rolling": "headwater.spark.grouped",
    "union": "headwater.spark.grouped",
    "correct_clocks": "headwater.spark.operators",
    "Broker": "headwater.transmit.embedded",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        from importlib import import_module

        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'headwater' has no attribute {name!r}")
