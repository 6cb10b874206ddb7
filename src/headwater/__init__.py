"""Headwater: a log that Kafka clients use unchanged, processing on Spark, views and a console."""

from typing import TYPE_CHECKING, Any

from headwater.app import App, Topic, View
from headwater.process.aggregates import count, max, mean, min, sum
from headwater.process.windows import Tumbling

if TYPE_CHECKING:
    from headwater.spark.operators import windowed
    from headwater.transmit.embedded import Broker

__version__ = "0.1.0"

__all__ = [  # in teaching order
    "App",
    "Topic",
    "View",
    "windowed",
    "Tumbling",
    "count",
    "sum",
    "mean",
    "min",
    "max",
    "Broker",
]

# Spark and the broker are large: whoever needs only one of them does not wait for the other.
_LATER = {"windowed": "headwater.spark.operators", "Broker": "headwater.transmit.embedded"}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        from importlib import import_module

        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'headwater' has no attribute {name!r}")
