"""The log on disk: files only. It handles record batches, but no messages, sockets or clocks.

partition, segment, index        a partition's log, its segment files and their sparse indexes
file_names                       the names of these files
start_offset, producer_snapshot  small files next to the segments
scan, verify                     find torn tails and damage
verified_regions                 parts of a sealed segment that are checked already
pool                             bound the number of open segment files
retention, archive               which segments expire; move them to the archive directory
compaction, cleaner, swap        which records compaction keeps; rewrite the files; replace them atomically
disk_reserve                     free space that records may not use
"""
