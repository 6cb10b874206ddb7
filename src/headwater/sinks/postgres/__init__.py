"""The PostgreSQL sink.

sink   stage, merge and record progress in one transaction
table  the target table and the statements on it
copy   rows as CSV for COPY
"""
