"""The request handlers. A handler returns the response message, now or later; it does no network I/O.

cluster                             ApiVersions, Metadata, FindCoordinator, DescribeCluster
topics, configs, quotas             create, change, describe and delete them
produce, fetch, offsets             append records, read records, look up offsets in the log
transactions                        producer ids and transactions
classic_groups, consumer_groups, share_groups
                                    requests of the members of a group, by protocol
committed_offsets                   commit, read and delete the offsets of a group
group_admin, share_admin            list, describe and delete groups; start offsets of share groups
admin                               records, replicas, log directories; security requests, which are declined

Handlers do not import each other: code that several of them use is in `broker`.
"""
