"""Tables that change, and joins.

changelog                               a changelog as a table
sides                                   both inputs of a join as one
table_join, interval_join, as_of_join   table with table; stream with stream; stream with table
aggregate, ranking                      aggregates and rankings of groups whose rows change
"""
