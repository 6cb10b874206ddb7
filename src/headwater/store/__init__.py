"""Where results rest and how they are asked: the rows of views, their changes and the progress, in one database.

Written by `spark`, read by `serve` and by whoever has `reader.Views`; it knows none of them.

    questions, statements, words     what is asked, as values and as SQL: pure
    views                            ViewStore: batches come in
    tables, access, late, generations   the tables behind it
    asking, following, reader        answers, subscriptions, and a class for users
    engine, sqlite, postgres         the databases
"""
