"""Results are read: views, topics and pipelines as JSON over HTTP, and their changes as they happen.

Nothing here writes. The console and the commands see an app through these addresses alone.
"""
