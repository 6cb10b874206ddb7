"""The broker: accepts connections and dispatches requests to handlers.

embedded, server, connection  the broker inside a process; its listening socket; one client's connection
outbox, request_memory        responses not yet sent; the bound on buffered requests
dispatch, request, handlers   find the handler of a request; its interface; the handlers by subject
error_codes, permissions, offset_commits, group_messages
                              used by several handlers
node                          the state that handlers work on
fetch_sessions, throttle      incremental fetches (KIP-227); quotas enforced
counters, metrics, metrics_page, retention_risk
                              counts, Prometheus metrics, and groups about to lose records to retention
"""
