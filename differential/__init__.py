"""Differential tests: the same query on every path, against SQL over the final rows.

rows, values, measures      generated rows, the comparison of values, aggregates
dialects                    what DuckDB and Spark SQL write differently
operators, windows, joins   every operator on Spark, as a kernel, and in SQL
by_window                   operators that group or order by the column `window`
queries                     pairs of all operators, and random chains
simulated, on_spark         run a query's kernels in this process, or the query on Spark: in batch and in an app
reference                   the expected result
overflow                    finds out whether a sum could overflow before the end
check                       compares
run                         the command: `./dev differential`

The paths are the kernels in random batches, with combining and restarts; Spark in batch; and an app on Spark with
a broker. The test suite runs some queries, the command as many as asked for.
"""
