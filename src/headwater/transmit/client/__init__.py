"""The blocking client of our own processes, for our broker and for Apache Kafka.

client, connection, errors      metadata, offsets, record batches in and out; connections; error codes raised
reading                         decoded records
topics, groups, quotas          administration
transactions                    a transactional producer
lag                             lag of groups, and records that retention will soon delete
redrive                         move dead letters back to their topics, exactly once
"""
