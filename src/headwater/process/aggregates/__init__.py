"""Aggregate functions.

aggregates    the functions as values that users write: `hw.sum("amount")`
folds         each function as columns: initialize, merge, finish
sums          sums and means, which raise an error instead of overflowing
bags          functions that keep the values themselves, or a sketch of them
exact_values  the values that exact `distinct`, `quantile`, `top_k` and `collect` keep
"""
