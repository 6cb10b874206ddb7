"""Reading results: views, topics and pipelines as JSON over HTTP, and their changes as they happen.

Nothing here writes. The console reads an app only through this HTTP API.
"""
