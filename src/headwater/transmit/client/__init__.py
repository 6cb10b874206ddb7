"""The blocking client of our own processes, for our broker and for Apache Kafka.

client, connection, errors      metadata, offsets, record batches in and out; connections; error codes raised
fetching                        Fetch requests for several partitions
reading                         decoded records
ranges                          ranges of several partitions as Arrow batches
waiting, interrupt              wait for records, until there are some or another thread interrupts it
topics, groups, quotas          administration
transactions                    a transactional producer
lag                             lag of groups, and records that retention will soon delete
redrive                         move dead letters back to their topics, exactly once
"""
