"""The log as a Spark data source, `format("headwater")`.

source, offsets  streaming and batch reads; which offsets each task reads
wake_ups         start a batch when the processing time requires one
exclusions       records that a query leaves out
decoding         values to rows by a schema
writer           rows to records
daemon           fork Python workers that have imported this already
"""
