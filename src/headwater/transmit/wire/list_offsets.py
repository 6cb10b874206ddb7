"""Special timestamps of ListOffsets, in addition to Kafka's own negative ones."""

DELETED_SOON = -1001
"""The offset before which retention will soon delete records. Not part of Kafka's protocol."""
