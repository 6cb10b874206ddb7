"""Headwater: a log that Kafka clients use unchanged, processing on Spark, views and a console.

`import headwater as hw` is the public interface, and `headwater.testing` has what tests need. The rest is
internal.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# The public names in teaching order, by the module that defines them. A module is imported when one of its names
# is first used: Spark and the broker are large, and few programs need both. `./dev docs` generates `__init__.pyi`
# from this table, for type checkers and editors.
_PUBLIC = {
    "headwater.app": ("App", "Topic", "View"),
    "headwater.spark.operators.windowed": ("windowed",),
    "headwater.process.windows.windows": (
        "Tumbling", "Hopping", "Sliding", "Session", "Global", "EVENT_TIME", "PROCESSING_TIME",
    ),
    "headwater.process.windows.triggers": (
        "AfterWatermark", "AfterCount", "AfterProcessingTime", "EveryBatch", "PerRecord", "Repeatedly", "AfterAny",
        "AfterAll", "AfterEach", "OrFinally", "Default",
    ),
    "headwater.process.windows.windowing": ("DISCARDING", "ACCUMULATING", "RETRACTING"),
    "headwater.process.aggregates.aggregates": (
        "count", "sum", "mean", "min", "max", "first", "last", "collect", "distinct", "quantile", "top_k",
        "approx_distinct", "approx_quantile", "approx_top_k",
    ),
    "headwater.spark.operators.tables": ("table",),
    "headwater.spark.operators.joins": ("join",),
    "headwater.spark.operators.side_input": ("SideInput",),
    "headwater.spark.operators.groups": ("aggregate", "top", "deduplicate", "rolling", "union"),
    "headwater.spark.operators.device_clocks": ("correct_clocks",),
    "headwater.process.watermarks": ("Observed",),
    "headwater.sinks.postgres.sink": ("Postgres",),
    "headwater.sinks.sqlite": ("Sqlite",),
    "headwater.sinks.topic": ("KafkaTopic",),
    "headwater.sinks.parquet": ("Parquet", "parquet_files", "read_parquet"),
    "headwater.sinks.delta": ("Delta",),
    "headwater.sinks.webhook": ("Webhook",),
    "headwater.sinks.mail": ("Mail",),
    "headwater.sinks.net_changes": ("net_changes",),
    "headwater.store.reader": ("Views",),
    "headwater.assembly.running": ("RunningApp",),
    "headwater.transmit.broker.embedded": ("Broker",),
}  # fmt: skip
_PUBLIC_MODULES = ("sink", "errors")  # for sinks of your own
_MODULE_OF = {name: module for module, names in _PUBLIC.items() for name in names}

__all__ = [*_MODULE_OF, *_PUBLIC_MODULES]  # noqa: PLE0604 - strings, all of them


def __getattr__(name: str) -> Any:
    if name in _PUBLIC_MODULES:
        return import_module(f"headwater.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'headwater' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
