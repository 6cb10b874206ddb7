"""The record batch: its bytes, its compression, and its conversion to and from Arrow.

codec, compression      variable-length integers; the four compression codecs
batch, control          batches of records; control batches that end a transaction
rewrite                 change a batch without decoding all of it
file_region             a range of a segment file, sent without reading it
to_arrow, from_arrow    batches to Arrow columns and back
dead_letters            the headers of records that could not be processed
"""
