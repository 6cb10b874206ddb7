"""The PostgreSQL sink.

sink   stages and merges rows and records progress, in one transaction
table  the target table and the statements on it
copy   rows as CSV for COPY
"""
