"""Messages that kafka-python has no class for, in the JSON format of its loader; see `wire.json_messages`."""
