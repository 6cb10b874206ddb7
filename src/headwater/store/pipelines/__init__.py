"""Checkpoints, controls and statistics of an app's pipelines.

generations    the checkpoint from which each query continues, and rebuilds
controls       what users ask of a pipeline: pause, resume, reset
facts          statistics of running queries, in a database of their own
"""
