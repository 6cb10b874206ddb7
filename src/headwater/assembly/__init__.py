"""Assemble an app from its parts: log, store, console, Spark and pipeline."""
