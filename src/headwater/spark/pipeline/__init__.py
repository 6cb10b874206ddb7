"""The streaming queries of an app.

pipeline                   start and stop all queries
plan, definition           build a query's DataFrame; compare it with its checkpoint
batch_sinks, dead_letters  write a micro-batch to a view or a sink; to a dead-letter topic
watch, failures            report progress; restart queries that failed
poison, bisection          find the records on which a query fails
rebuilds, reprocess        recompute a view; recompute windows with late rows
checkpoint, new_checkpoint read Spark's checkpoint; start a query with a new one
"""
