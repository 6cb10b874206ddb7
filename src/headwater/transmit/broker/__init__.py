"""The broker: accepts connections and dispatches requests to handlers.

embedded                      starts a broker, in an event loop or on a thread of its own
server, connection            the listening socket and the periodic tasks; one client's connection
request_memory, outbox        the bound on buffered requests; responses not yet sent
dispatch, handlers            find the handler of a request; the handlers by subject
request, response             the context of a request; encoded responses
error_codes, permissions, offset_commits, group_messages
                              used by several handlers
node                          the state that handlers work on
fetch_sessions, throttle      incremental fetches (KIP-227); quotas enforced
monitoring                    counters, Prometheus metrics, and groups about to lose records to retention
"""
