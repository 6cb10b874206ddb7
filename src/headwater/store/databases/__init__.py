"""The databases that can hold a store.

engine           the interface of a database
sqlite, postgres its two implementations
sqlite_errors    SQLite errors: transient ones, and those of a statement's values
"""
