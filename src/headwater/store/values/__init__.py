"""The values of views, from Spark's results to the database and back. Pure.

column_types  columns and their types
columns       Arrow columns as database values, and database values as JSON values
"""
