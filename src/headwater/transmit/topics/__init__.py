"""Topics and partitions while the broker runs: append, read, and the metadata they need.

topics              create, configure and delete topics; append to their partitions
partition           one partition: its log, its producers, and the tasks that wait for it
catalog             topics, committed offsets and quotas on disk
producers           sequence numbers, epochs and open transactions of a partition
admission           apply a topic's configs to a batch before it is written
conditional_append  append only if an offset or a key's version matches
group_commit        one disk sync for all producers that wait
upkeep              roll, expire, archive and compact segments periodically
"""
