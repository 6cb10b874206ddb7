"""Metrics and warnings of a broker.

counters        requests, bytes and syncs, counted while the broker works
metrics         these and the state of the log in Prometheus' text format
metrics_page    the HTTP page that Prometheus reads
retention_risk  groups that will lose unread records to retention
"""
