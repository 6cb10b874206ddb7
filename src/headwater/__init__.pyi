# Generated from the table in __init__.py by `./dev docs`; do not edit.

from headwater.app import App as App
from headwater.app import Topic as Topic
from headwater.app import View as View
from headwater.spark.operators.windowed import windowed as windowed
from headwater.process.windows.windows import Tumbling as Tumbling
from headwater.process.windows.windows import Hopping as Hopping
from headwater.process.windows.windows import Sliding as Sliding
from headwater.process.windows.windows import Session as Session
from headwater.process.windows.windows import Global as Global
from headwater.process.windows.windows import EVENT_TIME as EVENT_TIME
from headwater.process.windows.windows import PROCESSING_TIME as PROCESSING_TIME
from headwater.process.windows.triggers import AfterWatermark as AfterWatermark
from headwater.process.windows.triggers import AfterCount as AfterCount
from headwater.process.windows.triggers import AfterProcessingTime as AfterProcessingTime
from headwater.process.windows.triggers import EveryBatch as EveryBatch
from headwater.process.windows.triggers import PerRecord as PerRecord
from headwater.process.windows.triggers import Repeatedly as Repeatedly
from headwater.process.windows.triggers import AfterAny as AfterAny
from headwater.process.windows.triggers import AfterAll as AfterAll
from headwater.process.windows.triggers import AfterEach as AfterEach
from headwater.process.windows.triggers import OrFinally as OrFinally
from headwater.process.windows.triggers import Default as Default
from headwater.process.windows.windowing import DISCARDING as DISCARDING
from headwater.process.windows.windowing import ACCUMULATING as ACCUMULATING
from headwater.process.windows.windowing import RETRACTING as RETRACTING
from headwater.process.aggregates.aggregates import count as count
from headwater.process.aggregates.aggregates import sum as sum
from headwater.process.aggregates.aggregates import mean as mean
from headwater.process.aggregates.aggregates import min as min
from headwater.process.aggregates.aggregates import max as max
from headwater.process.aggregates.aggregates import first as first
from headwater.process.aggregates.aggregates import last as last
from headwater.process.aggregates.aggregates import collect as collect
from headwater.process.aggregates.aggregates import distinct as distinct
from headwater.process.aggregates.aggregates import quantile as quantile
from headwater.process.aggregates.aggregates import top_k as top_k
from headwater.process.aggregates.aggregates import approx_distinct as approx_distinct
from headwater.process.aggregates.aggregates import approx_quantile as approx_quantile
from headwater.process.aggregates.aggregates import approx_top_k as approx_top_k
from headwater.spark.operators.tables import table as table
from headwater.spark.operators.joins import join as join
from headwater.spark.operators.side_input import SideInput as SideInput
from headwater.spark.operators.groups import aggregate as aggregate
from headwater.spark.operators.groups import top as top
from headwater.spark.operators.groups import deduplicate as deduplicate
from headwater.spark.operators.groups import rolling as rolling
from headwater.spark.operators.groups import union as union
from headwater.spark.operators.device_clocks import correct_clocks as correct_clocks
from headwater.process.watermarks import Observed as Observed
from headwater.sinks.postgres.sink import Postgres as Postgres
from headwater.sinks.sqlite import Sqlite as Sqlite
from headwater.sinks.topic import KafkaTopic as KafkaTopic
from headwater.sinks.parquet import Parquet as Parquet
from headwater.sinks.parquet import parquet_files as parquet_files
from headwater.sinks.parquet import read_parquet as read_parquet
from headwater.sinks.delta import Delta as Delta
from headwater.sinks.webhook import Webhook as Webhook
from headwater.sinks.mail import Mail as Mail
from headwater.sinks.net_changes import net_changes as net_changes
from headwater.store.reader import Views as Views
from headwater.assembly.running import RunningApp as RunningApp
from headwater.transmit.broker.embedded import Broker as Broker
from headwater import sink as sink
from headwater import errors as errors

__version__: str

__all__ = [
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
    "net_changes",
    "Views",
    "RunningApp",
    "Broker",
    "sink",
    "errors",
]
