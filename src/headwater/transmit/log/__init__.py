"""The log on disk: files only. It knows record batches, but no message, no socket and no clock."""
