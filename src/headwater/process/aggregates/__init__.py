"""Aggregate functions.

aggregates    the functions as values that users write: `hw.sum("amount")`
folds         each function as columns: initialize, merge, finish
exact_values  the values that exact `distinct`, `quantile`, `top_k` and `collect` keep
"""
