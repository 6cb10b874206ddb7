"""The commands, one module for each group of commands.

run, demo, view, sql, pipeline, late, rebuild, transcript    apps
broker, topic, group, queue, deadletter, quota, log          the log
doctor                                                       this machine
"""
