"""Run computations on Spark: the only package that imports pyspark, apart from `testing.spark_runner`.

pipeline   the queries of an app: plan, start, watch, restart, rebuild
definition describe a query, and compare it with its checkpoint
operators  functions for `df.transform(...)`
kernels    run a kernel of `process` as a stateful operator
source     the log as a Spark data source
session    Java and the Spark session
"""
