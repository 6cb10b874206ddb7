"""Consumer groups of both protocols; `share` has share groups (queues).

store, settings          groups on disk; their configs
kinds                    a group name belongs to one protocol at a time
classic, classic_rounds  the classic protocol: requests; join and sync rounds
consumer, assignors      the KIP-848 protocol; its assignors
heartbeats               the reply to a heartbeat, for consumer and share groups
subscriptions            topic names and patterns that a member subscribes to
"""
