"""What ListOffsets may be asked for besides a time and Kafka's own numbers below zero."""

DELETED_SOON = -1001
"""The offset before which retention will delete records before long. Ours, and far from Kafka's own numbers."""
