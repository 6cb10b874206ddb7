"""Headwater: a log that Kafka clients use unchanged, processing on Spark, views and a console."""

from typing import TYPE_CHECKING, Any

from headwater.app import App, Topic, View
from headwater.process.aggregates.aggregates import (
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
from headwater.process.windows.triggers import (
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
from headwater.process.windows.windowing import ACCUMULATING, DISCARDING, RETRACTING
from headwater.process.windows.windows import (
    EVENT_TIME,
    PROCESSING_TIME,
    Global,
    Hopping,
    Session,
    Sliding,
    Tumbling,
)

if TYPE_CHECKING:
    from headwater.process.watermarks import Observed
    from headwater.sinks.delta import Delta
    from headwater.sinks.mail import Mail
    from headwater.sinks.parquet import Parquet, parquet_files, read_parquet
    from headwater.sinks.postgres.sink import Postgres
    from headwater.sinks.sqlite import Sqlite
    from headwater.sinks.topic import KafkaTopic
    from headwater.sinks.webhook import Webhook
    from headwater.spark.operators.device_clocks import correct_clocks
    from headwater.spark.operators.groups import aggregate, deduplicate, rolling, top, union
    from headwater.spark.operators.joins import join
    from headwater.spark.operators.side_input import SideInput
    from headwater.spark.operators.tables import table
    from headwater.spark.operators.windowed import windowed
    from headwater.store.reader import Views
    from headwater.transmit.broker.embedded import Broker

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
    "SideInput",
    "aggregate",
    "top",
    "deduplicate",
    "rolling",
    "union",
    "correct_clocks",
    "Observed",
    "Postgres",
    "Sqlite",
    "KafkaTopic",
    "Parquet",
    "parquet_files",
    "read_parquet",
    "Delta",
    "Webhook",
    "Mail",
    "Views",
    "Broker",
]

# Spark and the broker are large: whoever needs only one of them does not wait for the other.
_LATER = {
    "windowed": "headwater.spark.operators.windowed",
    "table": "headwater.spark.operators.tables",
    "join": "headwater.spark.operators.joins",
    "SideInput": "headwater.spark.operators.side_input",
    "aggregate": "headwater.spark.operators.groups",
    "top": "headwater.spark.operators.groups",
    "deduplicate": "headwater.spark.operators.groups",
    "rolling": "headwater.spark.operators.groups",
    "union": "headwater.spark.operators.groups",
    "correct_clocks": "headwater.spark.operators.device_clocks",
    "Observed": "headwater.process.watermarks",
    "Postgres": "headwater.sinks.postgres.sink",
    "Sqlite": "headwater.sinks.sqlite",
    "KafkaTopic": "headwater.sinks.topic",
    "Delta": "headwater.sinks.delta",
    "Webhook": "headwater.sinks.webhook",
    "Mail": "headwater.sinks.mail",
    "Parquet": "headwater.sinks.parquet",
    "parquet_files": "headwater.sinks.parquet",
    "read_parquet": "headwater.sinks.parquet",
    "Views": "headwater.store.reader",
    "Broker": "headwater.transmit.broker.embedded",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        from importlib import import_module

        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'headwater' has no attribute {name!r}")
