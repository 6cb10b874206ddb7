"""The streaming queries of an app.

pipeline                   start, watch and stop all queries
running_queries            the registry of queries that the others share
launcher                   start a query from its checkpoint
plan                       build a query's DataFrame, and describe it
batch_sinks, dead_letters  write a micro-batch to a view or a sink; to a dead-letter topic
watch, failures            report progress; decide about queries that failed
poison, poison_search      exclude the records on which a query fails; find them
bisection                  find the failing items among many, with few tries
rebuilds, reprocess        recompute a view; recompute windows with late rows
new_checkpoint, settings   start a query with a new checkpoint; where checkpoints are
"""
