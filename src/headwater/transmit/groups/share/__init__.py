"""Share groups (KIP-932), which users know as queues.

share_groups        the share groups of a broker, kept on disk
members             members, their assigned partitions and share sessions
share_partition     one partition as a share group sees it: available, acquired and acknowledged records
dead_letter_writer  write rejected records to the dead-letter topic
"""
