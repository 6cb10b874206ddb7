"""Events travel: an append-only log that Kafka's clients use unchanged."""
