"""Kernels over tables that change, and joins.

changelog                               a table built from its changelog
sides                                   both inputs of a join as one stream of rows
table_join, interval_join, as_of_join   table with table; stream with stream; stream with table
aggregate, ranking                      aggregates and rankings of groups, whose rows may be retracted
"""
