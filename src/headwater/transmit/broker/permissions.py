"""The operations that a client is authorized for: all of them, because there is no authorizer.

Clients can request them in describe requests. The numbers are Kafka's; on the wire they are bits of one number.
https://kafka.apache.org/protocol (KIP-430)
"""

from enum import IntEnum

NOT_REQUESTED = -(2**31)
"""Sent in place of the bits to clients that did not request them."""


class Operation(IntEnum):
    """An operation that an authorizer allows or denies."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


_CONFIGS = {Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS}
ON_CLUSTER = frozenset(
    {Operation.CREATE, Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION, Operation.IDEMPOTENT_WRITE}
    | _CONFIGS
)
ON_TOPIC = frozenset(
    {Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.DESCRIBE}
    | _CONFIGS
)
ON_GROUP = frozenset({Operation.READ, Operation.DELETE, Operation.DESCRIBE} | _CONFIGS)


def as_set(allowed: frozenset[Operation], *, requested: bool | None) -> frozenset[Operation] | None:
    """Return the operations as kafka-python's messages expect them; None unless the client requested them."""
    return allowed if requested else None


def as_bits(allowed: frozenset[Operation], *, requested: bool | None) -> int:
    """Return the operations as one number with a bit for each; NOT_REQUESTED unless the client requested them."""
    return sum(1 << operation for operation in allowed) if requested else NOT_REQUESTED
