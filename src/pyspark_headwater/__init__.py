"""Makes `spark.read.format("headwater")` work in any session: Spark looks for packages named `pyspark_*`."""

from headwater.spark.source.source import HeadwaterSource as DefaultSource

__all__ = ["DefaultSource"]
