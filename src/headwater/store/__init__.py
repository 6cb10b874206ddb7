"""The store of views: rows, their changes and the progress of queries, in one database, and the queries on them.

Written by `spark`, read by `serve` and by programs through `reader.Views`; it imports none of them.

    questions, statements, search        questions as values and as SQL: pure
    shapes, values                       the columns of views, and the form of their values: pure
    rows, arrow                          encoded rows and their changes; rows as an Arrow table
    views                                ViewStore: writes batches and answers questions
    batches                              commits of several batches in one transaction
    tables, access, late                 its tables
    pipelines                            checkpoints, controls and statistics of the queries that write views
    queries, subscription, reader        answers, subscriptions, and the class for users
    location                             the address of the store
    databases                            SQLite and PostgreSQL
"""
