"""Topics and partitions while the broker runs: append, read, and the metadata they need.

topics              the topics of a broker, and their partitions
catalog             topics, committed offsets and quotas on disk
producers           sequence numbers, epochs and open transactions of a partition
admission           apply a topic's configs to a batch before it is written
conditional_append  append only if an offset or a key's version matches
group_commit        one disk sync for all producers that wait
upkeep              roll, expire, archive and compact segments periodically
"""
