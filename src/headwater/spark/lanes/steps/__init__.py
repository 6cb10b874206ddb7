"""The steps of a query, which are drawn once and run for each batch.

blueprint         what a query computes: operators, and steps of Spark before and after them
stage_plan        steps of Spark, with a plan that is made once
column_selection  steps that only choose and rename columns, without Spark
operator_steps    the kernels of operators, in the driver
"""
