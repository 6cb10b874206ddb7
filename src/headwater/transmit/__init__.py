"""Store and transmit events: an append-only log that Kafka clients use unchanged.

    broker        accepts connections and answers Kafka's requests
    client        the blocking client of our own processes
    groups        consumer groups and share groups (queues)
    transactions  transactions across partitions
    topics        topics and partitions while the broker runs
    log           segments, indexes and compaction on disk
    wire          Kafka's messages, bytes to values and back
    records       the record batch and its conversions

`configs` and `quotas` define what can be configured, `metadb` opens the broker's SQLite file, and `transport` is
the byte stream below broker and client.
"""
