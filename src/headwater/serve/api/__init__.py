"""JSON over HTTP under `/api/v1`.

app           the routes, and errors as responses
view_queries  a request's parameters as a `Question`
status        the status of the whole app
"""
