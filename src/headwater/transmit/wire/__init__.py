"""Kafka's messages: bytes to values and back. No socket is opened here and no file."""
