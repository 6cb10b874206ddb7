"""Messages that kafka-python has no class for, in the JSON form that its loader reads; see `wire.groups`."""
