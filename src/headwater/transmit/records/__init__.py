"""The record batch: its bytes, its compression, and its conversion to and from Arrow.

codec, compression      variable-length integers; the four compression codecs
attributes              the attribute bits of a batch
batch_header, batch     the header of a batch; its records, encoded and decoded
control                 control batches, which end a transaction
rewrite                 change a batch without decoding all of it
file_region             a range of a segment file, sent without reading it
to_arrow, from_arrow    batches to Arrow columns and back
dead_letters            the headers of records that could not be processed
"""
