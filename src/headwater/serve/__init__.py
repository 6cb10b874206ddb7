"""Serve results: views, topics and pipelines as JSON over HTTP, and their changes as they happen.

server            the HTTP server
api               one function per address
live              server-sent events
metrics, openapi  Prometheus metrics; the description of the API
sql               SQL over views, topics, Parquet and PostgreSQL
"""
