"""Live data: streams of events, and samples that are refreshed periodically.

events         server-sent events
subscriptions  rows of a view, then its changes
rates          records per second of each topic
group_lag      lag of each consumer group
catch_up       estimate how long a pipeline takes to catch up
"""
