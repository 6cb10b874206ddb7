"""Queries of an app that advance together, one batch for all of them.

lanes, lane           which queries are in which lane; the loop of a lane
member, batch_log     a query in a lane; its batches in its checkpoint
positions, log_ends   which queries are behind others; where topics end
batch_run, sharing    one batch of queries; which of them share operators
steps/                what a query computes, and how
jobs                  cancels Spark's jobs that take too long
records, topic_rows   the records of a batch, decoded once; how queries use them
state_files           the state of operators
writing               states and sinks, before the lane commits a batch
"""
