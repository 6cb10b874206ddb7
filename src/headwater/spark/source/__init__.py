"""The log as a Spark data source, `format("headwater")`.

source, offsets  streaming and batch reads; which offsets each task reads
wake_ups         start a batch when the processing time requires one
topic_reads      topics as DataFrames
checkpoint       the offsets and batches in a query's checkpoint
exclusions       records that a query leaves out, because its function fails on them
left_out         leave records out of what is read
decoding         values to rows by a schema
writer           rows to records
daemon           fork Python workers that have imported this already
"""
