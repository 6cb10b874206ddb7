"""The databases that can hold a store.

engine           the interface that the store needs
sqlite, postgres its two implementations
sqlite_errors    transient SQLite errors as `UnavailableError`
"""
